// 16 lanes in one 512-bit register.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

constexpr int LANES = 16;
constexpr int REGISTERS = 32;

using Floats = __m512;
using Integers = int32_t __attribute__((vector_size(64)));
using Mask = __mmask16;

inline Floats constant(float value) { return _mm512_set1_ps(value); }
inline Integers constant(int value) { return (Integers)_mm512_set1_epi32(value); }

inline Floats load(const float* from) { return _mm512_loadu_ps(from); }
inline Integers load(const int32_t* from) { return (Integers)_mm512_loadu_si512(from); }
inline void store(float* to, Floats values) { _mm512_storeu_ps(to, values); }
inline void store(int32_t* to, Integers values) { _mm512_storeu_si512(to, (__m512i)values); }

// Memory outside the mask is neither read nor written.
inline Floats load_some(const float* from, Mask mask, Floats otherwise) {
    return _mm512_mask_loadu_ps(otherwise, mask, from);
}
inline void store_some(float* to, Mask mask, Floats values) {
    _mm512_mask_storeu_ps(to, mask, values);
}

inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats maximum(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats absolute(Floats a) { return _mm512_abs_ps(a); }
inline Floats round_to_even(Floats a) { return _mm512_roundscale_ps(a, 0); }
// x 2^power for whole powers from -126 to 127.
inline Floats scale(Floats x, Floats power) { return _mm512_scalef_ps(x, power); }

inline Integers to_integers(Floats a) { return (Integers)_mm512_cvtps_epi32(a); }
inline Floats to_floats(Integers a) { return _mm512_cvtepi32_ps((__m512i)a); }
inline Integers as_integers(Floats a) { return (Integers)a; }
inline Floats as_floats(Integers a) { return (Floats)a; }

inline Mask greater(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
inline Mask not_a_number(Floats a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
inline Mask zero_bytes(__m128i a) { return _mm_testn_epi8_mask(a, a); }
inline Mask first_lanes(long count) { return _bzhi_u32(0xffff, std::clamp<long>(count, 0, LANES)); }
inline unsigned bits(Mask mask) { return mask; }
inline Floats select(Mask mask, Floats a, Floats b) { return _mm512_mask_mov_ps(b, mask, a); }
inline Integers select(Mask mask, Integers a, Integers b) {
    return (Integers)_mm512_mask_mov_epi32((__m512i)b, mask, (__m512i)a);
}

inline __m256 low_half(Floats a) { return _mm512_castps512_ps256(a); }
inline __m256 high_half(Floats a) { return _mm512_extractf32x8_ps(a, 1); }

// The lowest 8 bits of each lane.
inline void store_bytes(uint8_t* to, Integers values) {
    _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8((__m512i)values));
}
// Lanes with values from -32768 to 32767.
inline void store_words(int16_t* to, Integers values) {
    _mm256_storeu_si256((__m256i*)to, _mm512_cvtepi32_epi16((__m512i)values));
}

// Adds 4 products of an unsigned and a signed byte to each lane.
#define WITH_BYTE_PRODUCTS
inline Integers add_byte_products(Integers sums, Integers row, Integers columns) {
    return (Integers)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)row, (__m512i)columns);
}
// Adds 2 products of signed words to each lane.
inline Integers add_word_products(Integers sums, Integers row, Integers columns) {
    return (Integers)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)row, (__m512i)columns);
}

#ifdef __AVX512BF16__
// Adds 2 products of bfloat16 to each lane.
#define WITH_BFLOAT16_PRODUCTS
inline Floats add_bfloat16_products(Floats sums, Integers row, Integers columns) {
    return _mm512_dpbf16_ps(sums, (__m512bh)row, (__m512bh)columns);
}
// Nearest bfloat16, ties to even.
inline void store_bfloat16(uint16_t* to, Floats values) {
    _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh(values));
}
#endif
