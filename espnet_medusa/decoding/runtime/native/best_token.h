// The best permitted token of a row of logits, and the row's normalizer.
#pragma once

#include "vectors.h"

// Limits of the first and the last columns of a row; ColumnGroups in best_tokens.py.
struct ColumnGroups {
    int64_t without_first, only_last, least, end;
};

// Tokens that may follow each row; RestrictionArguments in library.py.
struct Restriction {
    const uint8_t* blocked;   // (masks, V) bytes, 1 for blocked tokens; or null
    const int64_t* rows;      // (R) mask of each row
    int64_t eos;
    const float* eos_scores;  // (R) replace the logits of eos; or null
    const ColumnGroups* groups;  // (R); or null
    int64_t last_group;          // its first column
    int64_t renormalize;         // over the permitted tokens

    const uint8_t* blocked_of(long row, long size) const {
        return blocked == nullptr ? nullptr : blocked + rows[row] * size;
    }
};

// A token and its score.
struct Scored {
    float score;
    long token;

    // As torch's max: NaN is larger than all numbers, and the first of equal scores wins.
    bool before(const Scored& other) const {
        const bool nan = std::isnan(score), other_nan = std::isnan(other.score);
        if (nan || other_nan) return nan && (!other_nan || token < other.token);
        return score > other.score || (score == other.score && token < other.token);
    }
};

// Lanes with permitted tokens.
inline Mask allowed_lanes(const uint8_t* blocked, long at, long size) {
    const Mask present = lanes(at, size);
    if (blocked == nullptr) return present;
    uint8_t last[LANES] = {};
    const uint8_t* from = blocked + at;
    if (size - at < LANES) from = (const uint8_t*)std::memcpy(last, from, size - at);
    return present & zero_bytes(_mm_loadu_si128((const __m128i*)from));
}

// Result of one pass over a row.
struct Largest {
    Scored allowed;  // token 0 if all tokens are blocked, as in torch
    float of_all;    // NaN if any logit is NaN
};

// The largest logits, with and without restriction; `excluded` is one more blocked token.
inline Largest find_largest(
    const float* logits, long size, const uint8_t* blocked, long excluded) {
    Floats top = constant(-INFINITY), best = top;
    Integers best_at = constant(0);
    Mask nan = lanes(0, 0);
    auto permitted = [&](long at) {
        const Mask allowed = allowed_lanes(blocked, at, size);
        if (excluded < at || at + LANES <= excluded) return allowed;
        return Mask(allowed & (lanes(at, excluded) | ~lanes(at, excluded + 1)));
    };
    for (long at = 0; at < size; at += LANES) {
        const Floats values = load(logits, at, size, -INFINITY);
        nan = nan | not_a_number(values);
        top = maximum(top, values);
        const Mask better = permitted(at) & greater(values, best);
        best = select(better, values, best);
        best_at = select(better, constant((int)at), best_at);
    }
    float scores[LANES];
    int32_t places[LANES];
    store(scores, best);
    store(places, best_at);
    Largest result{{-INFINITY, 0}, bits(nan) ? NAN : largest(top)};
    for (int lane = 0; lane < LANES; ++lane) {
        const Scored of_lane{scores[lane], places[lane] + lane};
        if (of_lane.before(result.allowed)) result.allowed = of_lane;
    }
    if (bits(nan))
        for (long at = 0; at < size; ++at)
            if (std::isnan(logits[at]) && (bits(permitted(at / LANES * LANES)) >> at % LANES & 1)) {
                result.allowed = {logits[at], at};
                break;
            }
    return result;
}

// log(sum(exp(logits - largest))) for the largest logit; 0 if that is not finite.
inline float log_of_sum(const float* logits, long size, float largest) {
    if (!std::isfinite(largest)) return 0;
    Floats total = constant(0.0f);
    for (long at = 0; at < size; at += LANES)
        total = total + exponential(load(logits, at, size, -INFINITY) - constant(largest));
    return std::log(sum(total));
}

// The best permitted token of one row (size), and its normalizer (log-sum-exp).
inline void find_best_token(
    const float* logits, long size, const Restriction& restriction, long row, int64_t* token,
    float* of_row) {
    const bool changed = restriction.eos_scores != nullptr;
    const uint8_t* blocked = restriction.blocked_of(row, size);
    Largest largest = find_largest(logits, size, blocked, changed ? restriction.eos : -1);
    if (changed) {
        const Scored end{restriction.eos_scores[row], restriction.eos};
        if (end.before(largest.allowed)) largest.allowed = end;
    }
    *token = largest.allowed.token;
    *of_row = largest.of_all + log_of_sum(logits, size, largest.of_all);
}
