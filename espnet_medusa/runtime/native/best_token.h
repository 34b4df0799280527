// The best token of a row of logits among those that may come, and the row's normalizer.
#pragma once

#include "vectors.h"

// Which tokens may come behind each row. As Python lays it out.
struct Restriction {
    const uint8_t* blocked;   // (some, V) bytes, 1 for tokens that must not come; or null
    const int64_t* rows;      // (R) of `blocked`
    int64_t eos;
    const float* eos_scores;  // (R) instead of the logits; or null

    const uint8_t* blocked_behind(long row, long size) const {
        return blocked == nullptr ? nullptr : blocked + rows[row] * size;
    }
};

// A token and its score.
struct Scored {
    float score;
    long token;

    // NaN comes before all numbers, of equal ones the first: as torch finds the largest.
    bool before(const Scored& other) const {
        const bool none = std::isnan(score), other_none = std::isnan(other.score);
        if (none || other_none) return none && (!other_none || token < other.token);
        return score > other.score || (score == other.score && token < other.token);
    }
};

// Tokens of a vector that may come.
inline Mask allowed_lanes(const uint8_t* blocked, long at, long size) {
    const Mask present = lanes(at, size);
    if (blocked == nullptr) return present;
    uint8_t last[LANES] = {};
    const uint8_t* from = blocked + at;
    if (size - at < LANES) from = (const uint8_t*)std::memcpy(last, from, size - at);
    return present & zero_bytes(_mm_loadu_si128((const __m128i*)from));
}

// What one look at a row finds.
struct Largest {
    Scored allowed;  // 0 where nothing may come, as torch has it
    float of_all;    // NaN if there is one
};

// Of all tokens but `left_out`.
inline Largest find_largest(
    const float* logits, long size, const uint8_t* blocked, long left_out) {
    Floats top = constant(-INFINITY), best = top;
    Integers best_at = constant(0);
    Mask no_number = lanes(0, 0);
    auto may_come = [&](long at) {
        const Mask allowed = allowed_lanes(blocked, at, size);
        if (left_out < at || at + LANES <= left_out) return allowed;
        return Mask(allowed & (lanes(at, left_out) | ~lanes(at, left_out + 1)));
    };
    for (long at = 0; at < size; at += LANES) {
        const Floats some = load(logits, at, size, -INFINITY);
        no_number = no_number | not_a_number(some);
        top = maximum(top, some);
        const Mask better = may_come(at) & greater(some, best);
        best = select(better, some, best);
        best_at = select(better, constant((int)at), best_at);
    }
    float scores[LANES];
    int32_t places[LANES];
    store(scores, best);
    store(places, best_at);
    Largest found{{-INFINITY, 0}, bits(no_number) ? NAN : largest(top)};
    for (int lane = 0; lane < LANES; ++lane) {
        const Scored of_lane{scores[lane], places[lane] + lane};
        if (of_lane.before(found.allowed)) found.allowed = of_lane;
    }
    if (bits(no_number))
        for (long at = 0; at < size; ++at)
            if (std::isnan(logits[at]) && (bits(may_come(at / LANES * LANES)) >> at % LANES & 1)) {
                found.allowed = {logits[at], at};
                break;
            }
    return found;
}

// The logarithm of the sum of exponentials behind `largest`, the greatest logit: 0 if it is none.
inline float log_of_sum(const float* logits, long size, float largest) {
    if (!std::isfinite(largest)) return 0;
    Floats total = constant(0.0f);
    for (long at = 0; at < size; at += LANES)
        total = total + exponential(load(logits, at, size, -INFINITY) - constant(largest));
    return std::log(sum(total));
}

// The best token behind one of the rows, (size), and its normalizer.
inline void find_best_token(
    const float* logits, long size, const Restriction& restriction, long row, int64_t* token,
    float* of_row) {
    const bool changed = restriction.eos_scores != nullptr;
    const uint8_t* blocked = restriction.blocked_behind(row, size);
    Largest largest = find_largest(logits, size, blocked, changed ? restriction.eos : -1);
    if (changed) {
        const Scored end{restriction.eos_scores[row], restriction.eos};
        if (end.before(largest.allowed)) largest.allowed = end;
    }
    *token = largest.allowed.token;
    *of_row = largest.of_all + log_of_sum(logits, size, largest.of_all);
}
