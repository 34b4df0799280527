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

// Columns from `begin` to before `end`.
struct Columns {
    long begin, end;
};

// Logits of a row in two ranges of columns, without blocked tokens.
struct PermittedLogits {
    const float* logits;
    const uint8_t* blocked;  // or null
    Columns ranges[2];

    // Calls `visit(column, logits, lanes of permitted tokens)` for each vector.
    template <class Visit>
    void each(Visit visit) const {
        for (const Columns& range : ranges)
            for (long at = range.begin; at < range.end; at += LANES)
                visit(at, load(logits, at, range.end, -INFINITY),
                      allowed_lanes(blocked, at, range.end));
    }

    // NaN if a logit is NaN.
    float largest_logit() const {
        Floats top = constant(-INFINITY);
        Mask nan = lanes(0, 0);
        each([&](long, Floats values, Mask permitted) {
            nan = nan | Mask(permitted & not_a_number(values));
            top = select(permitted, maximum(top, values), top);
        });
        return bits(nan) ? NAN : largest(top);
    }

    // log(sum(exp(logits - top))) for the largest logit; 0 if that is not finite.
    float log_of_sum(float top) const {
        if (!std::isfinite(top)) return 0;
        Floats total = constant(0.0f);
        each([&](long, Floats values, Mask permitted) {
            total = select(permitted, total + exponential(values - constant(top)), total);
        });
        return std::log(sum(total));
    }
};

inline PermittedLogits permitted_logits(
    const float* logits, long size, const Restriction& restriction, long row) {
    const uint8_t* blocked = restriction.blocked_of(row, size);
    if (restriction.groups == nullptr) return {logits, blocked, {{0, size}}};
    const ColumnGroups& groups = restriction.groups[row];
    const Columns other{groups.without_first ? restriction.eos : 0, restriction.last_group};
    const Columns last{groups.least, groups.end};
    const PermittedLogits of_last{logits, blocked, {last}}, others{logits, blocked, {other}};
    const float top = of_last.largest_logit();
    if (groups.only_last || top + of_last.log_of_sum(top) > others.largest_logit()) return of_last;
    return {logits, blocked, {other, last}};
}

// The `count` best tokens of a row (size), best first, and their log-probabilities: -inf if fewer
// are permitted, NaN if a logit is NaN. `ranked` is working memory for `count`.
inline void find_top_tokens(
    const float* logits, long size, const Restriction& restriction, long row, long count,
    Scored* ranked, int64_t* tokens, float* log_probs) {
    const PermittedLogits permitted = permitted_logits(logits, size, restriction, row);
    Ranked best(ranked, count);
    Floats least = constant(-INFINITY);
    permitted.each([&](long at, Floats values, Mask allowed) {
        const Mask above = greater(values, least);
        if (!bits(above)) return;  // the usual case
        const uint32_t better = bits(Mask(above & allowed));
        for (int lane = 0; lane < LANES; ++lane)
            if (better >> lane & 1) best.add({logits[at + lane], at + lane});
        least = constant(best.least());
    });
    const PermittedLogits all{logits, nullptr, {{0, size}}};
    const PermittedLogits& normalized = restriction.renormalize ? permitted : all;
    const float top = normalized.largest_logit(), log_sum = normalized.log_of_sum(top);
    for (long place = 0; place < count; ++place) {
        tokens[place] = ranked[place].token;
        const float score = ranked[place].score;
        log_probs[place] = score > -INFINITY || std::isnan(top) ? score - top - log_sum : -INFINITY;
    }
}
