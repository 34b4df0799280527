// The most probable tokens of a row of logits among those that may come.
#pragma once

#include "best_token.h"

// The best so far, best first; of equal scores the one that came first.
class Ranked {
  public:
    Ranked(Scored* places, long count) : places(places), count(count) {
        std::fill(places, places + count, Scored{-INFINITY, 0});
    }
    float least() const { return places[count - 1].score; }
    void add(Scored one) {
        if (!(one.score > least())) return;
        long place = count - 1;
        for (; place > 0 && one.score > places[place - 1].score; --place)
            places[place] = places[place - 1];
        places[place] = one;
    }

  private:
    Scored* places;
    long count;
};

// The `count` best of a row (size), best first, and their log-probabilities: -inf where fewer may
// come, no numbers where a logit is none. `ranked` has room for `count`.
inline void find_top_tokens(
    const float* logits, long size, const Restriction& restriction, long row, long count,
    Scored* ranked, int64_t* tokens, float* log_probs) {
    const uint8_t* blocked = restriction.blocked_behind(row, size);
    Ranked best(ranked, count);
    Floats top = constant(-INFINITY), least = top;
    Mask no_number = lanes(0, 0);
    for (long at = 0; at < size; at += LANES) {
        const Floats some = load(logits, at, size, -INFINITY);
        no_number = no_number | not_a_number(some);
        top = maximum(top, some);
        const Mask above = greater(some, least);
        if (!bits(above)) continue;  // few are among the best
        const uint32_t better = bits(Mask(above & allowed_lanes(blocked, at, size)));
        for (int lane = 0; lane < LANES; ++lane)
            if (better >> lane & 1) best.add({logits[at + lane], at + lane});
        least = constant(best.least());
    }
    const float largest_of_all = bits(no_number) ? NAN : largest(top);
    const float rest = log_of_sum(logits, size, largest_of_all);
    for (long place = 0; place < count; ++place) {
        tokens[place] = ranked[place].token;
        log_probs[place] = ranked[place].score - largest_of_all - rest;
    }
}
