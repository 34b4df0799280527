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

// A row of logits whose blocked tokens are excluded.
struct PermittedLogits {
    const float* logits;
    const uint8_t* blocked;  // or null

    // Calls `visit(column, logits, lanes of permitted tokens)` for each vector.
    template <class Visit>
    void each(Columns columns, Visit visit) const {
        for (long at = columns.begin; at < columns.end; at += LANES)
            visit(at, load(logits, at, columns.end, -INFINITY),
                  allowed_lanes(blocked, at, columns.end));
    }

    // The largest logit; NaN if one is NaN.
    float largest_of(Columns columns) const {
        Floats top = constant(-INFINITY);
        Mask nan = lanes(0, 0);
        each(columns, [&](long, Floats values, Mask permitted) {
            nan = nan | Mask(permitted & not_a_number(values));
            top = select(permitted, maximum(top, values), top);
        });
        return bits(nan) ? NAN : largest(top);
    }

    // sum(exp(logits - top))
    float sum_of(Columns columns, float top) const {
        Floats total = constant(0.0f);
        each(columns, [&](long, Floats values, Mask permitted) {
            const Floats part = exponential(values - constant(top));
            total = select(permitted, total + part, total);
        });
        return sum(total);
    }
};

// The columns that timestamp rules permit: text, end symbol and special tokens; and timestamps.
struct Permitted {
    Columns text, times;
};

inline Permitted permitted_columns(
    const PermittedLogits& row, const Restriction& restriction, const TimestampLimits& limits) {
    Columns text{limits.closes ? restriction.eos : 0, restriction.first_time};
    const Columns times{limits.least, limits.end};
    const float top = row.largest_of(times);
    const bool only_times =
        limits.begins ||
        (std::isfinite(top) && top + std::log(row.sum_of(times, top)) > row.largest_of(text));
    if (only_times) text.end = text.begin;
    return {text, times};
}

// The `count` best tokens of a row (size), best first, and their log-probabilities: -inf if fewer
// are permitted, NaN if a logit is NaN. `ranked` is working memory for `count`.
inline void find_top_tokens(
    const float* logits, long size, const Restriction& restriction, long row, long count,
    Scored* ranked, int64_t* tokens, float* log_probs) {
    const PermittedLogits permitted{logits, restriction.blocked_of(row, size)};
    Permitted columns{{0, size}, {size, size}};
    if (restriction.timestamps != nullptr)
        columns = permitted_columns(permitted, restriction, restriction.timestamps[row]);
    Ranked best(ranked, count);
    Floats least = constant(-INFINITY);
    for (const Columns& part : {columns.text, columns.times})
        permitted.each(part, [&](long at, Floats values, Mask allowed) {
            const Mask above = greater(values, least);
            if (!bits(above)) return;  // the usual case
            const uint32_t better = bits(Mask(above & allowed));
            for (int lane = 0; lane < LANES; ++lane)
                if (better >> lane & 1) best.add({logits[at + lane], at + lane});
            least = constant(best.least());
        });
    const PermittedLogits counted = restriction.renormalize ? permitted : PermittedLogits{logits, nullptr};
    if (!restriction.renormalize) columns = {{0, size}, {size, size}};
    const float of_text = counted.largest_of(columns.text), of_times = counted.largest_of(columns.times);
    const float top = std::isnan(of_text) || std::isnan(of_times) ? NAN : std::max(of_text, of_times);
    float log_sum = 0;
    if (std::isfinite(top))
        log_sum = std::log(counted.sum_of(columns.text, top) + counted.sum_of(columns.times, top));
    for (long place = 0; place < count; ++place) {
        tokens[place] = ranked[place].token;
        const float score = ranked[place].score;
        log_probs[place] = score > -INFINITY || std::isnan(top) ? score - top - log_sum : -INFINITY;
    }
}
