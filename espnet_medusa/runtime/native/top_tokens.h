// The most probable permitted tokens of a row of logits.
#pragma once

#include "best_token.h"

// The best tokens so far, best first; of equal scores the earlier token first.
class Ranked {
  public:
    Ranked(Scored* places, long count) : places(places), count(count) {
        std::fill(places, places + count, Scored{-INFINITY, 0});
    }
    float least() const { return places[count - 1].score; }
    void add(Scored candidate) {
        if (!(candidate.score > least())) return;
        long place = count - 1;
        for (; place > 0 && candidate.score > places[place - 1].score; --place)
            places[place] = places[place - 1];
        places[place] = candidate;
    }

  private:
    Scored* places;
    long count;
};

// The `count` best tokens of a row (size), best first, and their log-probabilities: -inf if fewer
// are permitted, NaN if any logit is NaN. `ranked` is working memory for `count`.
inline void find_top_tokens(
    const float* logits, long size, const Restriction& restriction, long row, long count,
    Scored* ranked, int64_t* tokens, float* log_probs) {
    const uint8_t* blocked = restriction.blocked_of(row, size);
    Ranked best(ranked, count);
    Floats top = constant(-INFINITY), least = top;
    Mask nan = lanes(0, 0);
    for (long at = 0; at < size; at += LANES) {
        const Floats values = load(logits, at, size, -INFINITY);
        nan = nan | not_a_number(values);
        top = maximum(top, values);
        const Mask above = greater(values, least);
        if (!bits(above)) continue;  // the usual case
        const uint32_t better = bits(Mask(above & allowed_lanes(blocked, at, size)));
        for (int lane = 0; lane < LANES; ++lane)
            if (better >> lane & 1) best.add({logits[at + lane], at + lane});
        least = constant(best.least());
    }
    const float largest_of_all = bits(nan) ? NAN : largest(top);
    const float log_sum = log_of_sum(logits, size, largest_of_all);
    for (long place = 0; place < count; ++place) {
        tokens[place] = ranked[place].token;
        log_probs[place] = ranked[place].score - largest_of_all - log_sum;
    }
}
