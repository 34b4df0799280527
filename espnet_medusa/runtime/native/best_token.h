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
inline __mmask16 allowed_lanes(const uint8_t* blocked, long at, long size) {
    const __mmask16 present = lanes(at, size);
    if (blocked == nullptr) return present;
    const __m128i some = _mm_maskz_loadu_epi8(present, blocked + at);
    return _mm512_kandn(_mm_test_epi8_mask(some, some), present);
}

// What one look at a row finds.
struct Largest {
    Scored allowed;  // 0 where nothing may come, as torch has it
    float of_all;    // NaN if there is one
};

// Of all tokens but `left_out`.
inline Largest find_largest(
    const float* logits, long size, const uint8_t* blocked, long left_out) {
    __m512 top = constant(-INFINITY), best = top;
    __m512i best_at = _mm512_setzero_si512();
    __mmask16 no_number = 0;
    auto may_come = [&](long at) {
        __mmask16 mask = allowed_lanes(blocked, at, size);
        if (at <= left_out && left_out < at + LANES) mask &= ~(1u << (left_out - at));
        return mask;
    };
    for (long at = 0; at < size; at += LANES) {
        const __m512 some = load(logits, at, size);
        no_number |= _mm512_cmp_ps_mask(some, some, _CMP_UNORD_Q);
        top = _mm512_mask_max_ps(top, lanes(at, size), top, some);
        const __mmask16 better = _mm512_mask_cmp_ps_mask(may_come(at), some, best, _CMP_GT_OQ);
        best = _mm512_mask_mov_ps(best, better, some);
        best_at = _mm512_mask_mov_epi32(best_at, better, _mm512_set1_epi32(at));
    }
    float scores[LANES];
    int32_t places[LANES];
    _mm512_storeu_ps(scores, best);
    _mm512_storeu_si512(places, best_at);
    Largest found{{-INFINITY, 0}, no_number ? NAN : _mm512_reduce_max_ps(top)};
    for (int lane = 0; lane < LANES; ++lane) {
        const Scored of_lane{scores[lane], places[lane] + lane};
        if (of_lane.before(found.allowed)) found.allowed = of_lane;
    }
    if (no_number)
        for (long at = 0; at < size; ++at)
            if (std::isnan(logits[at]) && (may_come(at / LANES * LANES) >> at % LANES & 1)) {
                found.allowed = {logits[at], at};
                break;
            }
    return found;
}

// The logarithm of the sum of exponentials, of which `largest` is the greatest logit.
inline float normalizer(const float* logits, long size, float largest) {
    if (!std::isfinite(largest)) return largest;
    const __m512 top = constant(largest);
    __m512 total = _mm512_setzero_ps();
    for (long at = 0; at < size; at += LANES) {
        const __m512 some = exponential(_mm512_sub_ps(load(logits, at, size), top));
        total = _mm512_mask_add_ps(total, lanes(at, size), total, some);
    }
    return largest + std::log(_mm512_reduce_add_ps(total));
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
    *of_row = normalizer(logits, size, largest.of_all);
}
