// Rows of floats in AVX-512 registers, whole or the first few lanes.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

// PORTABLE: for tests of what processors without these instructions run.
#if defined(__AMX_INT8__) && defined(__AMX_BF16__) && !defined(PORTABLE)
#define WITH_TILES
#endif
#if defined(__AVX512BF16__) && PORTABLE < 2
#define WITH_BFLOAT16
#endif

constexpr int LANES = 16;

inline long round_up(long number, long step) { return (number + step - 1) / step * step; }

// Lanes of the vector that starts at `place` of `length` numbers, perhaps behind their end.
inline __mmask16 lanes(long place, long length) {
    return _bzhi_u32(0xffff, std::clamp<long>(length - place, 0, LANES));
}

// Masks cost more than a branch that is nearly always taken.
inline __m512 load(const float* from, long place, long length) {
    if (length - place >= LANES) return _mm512_loadu_ps(from + place);
    return _mm512_maskz_loadu_ps(lanes(place, length), from + place);
}

inline void store(float* to, long place, long length, __m512 values) {
    if (length - place >= LANES) return _mm512_storeu_ps(to + place, values);
    _mm512_mask_storeu_ps(to + place, lanes(place, length), values);
}

inline __m512 constant(float value) { return _mm512_set1_ps(value); }

// 2^x for x < 128, relative error 3e-7; 0 below -126, where it has no normal number.
inline __m512 power_of_two(__m512 x) {
    const __mmask16 large = _mm512_cmp_ps_mask(x, constant(-126.0f), _CMP_GT_OQ);
    const __m512 whole = _mm512_roundscale_ps(x, 0), rest = _mm512_sub_ps(x, whole);
    __m512 sum = constant(1.33908633e-3f);
    for (float next : {9.67603177e-3f, 5.55035695e-2f, 2.40221068e-1f, 6.93147182e-1f, 1.00000012f})
        sum = _mm512_fmadd_ps(sum, rest, constant(next));
    return _mm512_maskz_scalef_ps(large, sum, whole);
}

constexpr float LOG2_E = 1.44269504f;

inline __m512 exponential(__m512 x) { return power_of_two(_mm512_mul_ps(x, constant(LOG2_E))); }

// 1 / x, relative error 1e-8 but for rounding.
inline __m512 inverse(__m512 x) {
    const __m512 rough = _mm512_rcp14_ps(x);
    return _mm512_mul_ps(rough, _mm512_fnmadd_ps(x, rough, constant(2.0f)));
}

// x Phi(x); erf as in Abramowitz and Stegun 7.1.26, absolute error 1.5e-7.
inline __m512 gelu(__m512 x) {
    __m512 scaled = _mm512_mul_ps(x, constant(0.70710678f)), size = _mm512_abs_ps(scaled);
    __m512 one = constant(1.0f);
    __m512 t = inverse(_mm512_fmadd_ps(size, constant(0.3275911f), one));
    __m512 sum = constant(1.061405429f);
    for (float next : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f, 0.0f})
        sum = _mm512_fmadd_ps(sum, t, constant(next));
    __m512 tail = exponential(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(size, size)));
    __m512 erf = _mm512_fnmadd_ps(sum, tail, one);
    __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    erf = _mm512_mask_sub_ps(erf, negative, _mm512_setzero_ps(), erf);
    return _mm512_mul_ps(_mm512_mul_ps(x, constant(0.5f)), _mm512_add_ps(one, erf));
}

inline __m512 relu(__m512 x) { return _mm512_max_ps(x, _mm512_setzero_ps()); }

inline __m512 silu(__m512 x) {
    // Below -88 the result is -0 anyway.
    const __m512 minus = _mm512_min_ps(_mm512_sub_ps(_mm512_setzero_ps(), x), constant(88.0f));
    return _mm512_mul_ps(x, inverse(_mm512_add_ps(constant(1.0f), exponential(minus))));
}

// Nearest bfloat16, ties to even.
inline __m256i to_bfloat16(__m512 values) {
#ifdef WITH_BFLOAT16
    return (__m256i)_mm512_cvtneps_pbh(values);
#else
    __m512i bits = _mm512_castps_si512(values);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
#endif
}

// Neighbours in depth: 32 bits with an even place's number, then the odd one's.
inline __m512i to_pairs(__m512 even, __m512 odd) {
    const __m512i low = _mm512_cvtepu16_epi32(to_bfloat16(even));
    return _mm512_or_si512(low, _mm512_slli_epi32(_mm512_cvtepu16_epi32(to_bfloat16(odd)), 16));
}

// Memory of one thread that is kept from call to call and grows when needed.
class Scratch {
  public:
    // Room for these many bytes in all; what `take` gave before is gone.
    void reset(size_t bytes) {
        if (bytes > size) {
            memory.reset(static_cast<char*>(std::aligned_alloc(64, round_up(bytes, 64))));
            size = bytes;
        }
        used = 0;
    }

    template <class Type>
    Type* take(long count) {
        char* found = memory.get() + used;
        used += bytes_of<Type>(count);
        return reinterpret_cast<Type*>(found);
    }

    template <class Type>
    static size_t bytes_of(long count) {
        return round_up(count * sizeof(Type), 64);
    }

  private:
    struct Free {
        void operator()(char* pointer) const { std::free(pointer); }
    };
    std::unique_ptr<char, Free> memory;
    size_t size = 0, used = 0;
};
