// 16 lanes in two 256-bit registers; sums are in the same order as in avx512.h.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

constexpr int LANES = 16;
constexpr int REGISTERS = 8;  // pairs of 256-bit registers

struct Floats {
    __m256 low, high;
};
struct Integers {
    __m256i low, high;
};
struct Mask {  // lanes have all bits set, or none
    __m256 low, high;
};

inline Floats constant(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
inline Integers constant(int value) { return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }

inline Floats load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline Integers load(const int32_t* from) {
    return {_mm256_loadu_si256((const __m256i*)from), _mm256_loadu_si256((const __m256i*)from + 1)};
}
inline void store(float* to, Floats values) {
    _mm256_storeu_ps(to, values.low);
    _mm256_storeu_ps(to + 8, values.high);
}
inline void store(int32_t* to, Integers values) {
    _mm256_storeu_si256((__m256i*)to, values.low);
    _mm256_storeu_si256((__m256i*)to + 1, values.high);
}

inline Floats operator+(Floats a, Floats b) { return {a.low + b.low, a.high + b.high}; }
inline Floats operator-(Floats a, Floats b) { return {a.low - b.low, a.high - b.high}; }
inline Floats operator*(Floats a, Floats b) { return {a.low * b.low, a.high * b.high}; }
inline Floats operator/(Floats a, Floats b) { return {a.low / b.low, a.high / b.high}; }
inline Floats multiply_add(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Floats maximum(Floats a, Floats b) {
    return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
inline Floats absolute(Floats a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
inline Floats round_to_even(Floats a) {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.low, nearest), _mm256_round_ps(a.high, nearest)};
}

inline Integers operator+(Integers a, Integers b) {
    return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
inline Integers operator-(Integers a, Integers b) {
    return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)};
}
inline Integers operator&(Integers a, Integers b) { return {a.low & b.low, a.high & b.high}; }
inline Integers operator|(Integers a, Integers b) { return {a.low | b.low, a.high | b.high}; }
inline Integers operator>>(Integers a, int places) {
    return {_mm256_srai_epi32(a.low, places), _mm256_srai_epi32(a.high, places)};
}
inline Integers operator<<(Integers a, int places) {
    return {_mm256_slli_epi32(a.low, places), _mm256_slli_epi32(a.high, places)};
}

inline Integers to_integers(Floats a) {
    return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)};
}
inline Floats to_floats(Integers a) {
    return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)};
}
inline Integers as_integers(Floats a) { return {(__m256i)a.low, (__m256i)a.high}; }
inline Floats as_floats(Integers a) { return {(__m256)a.low, (__m256)a.high}; }
// x 2^power for whole powers from -126 to 127.
inline Floats scale(Floats x, Floats power) {
    return x * as_floats((to_integers(power) + constant(127)) << 23);
}

template <int COMPARISON>
inline Mask compare(Floats a, Floats b) {
    return {_mm256_cmp_ps(a.low, b.low, COMPARISON), _mm256_cmp_ps(a.high, b.high, COMPARISON)};
}
inline Mask greater(Floats a, Floats b) { return compare<_CMP_GT_OQ>(a, b); }
inline Mask not_a_number(Floats a) { return compare<_CMP_UNORD_Q>(a, a); }
inline Mask zero_bytes(__m128i a) {
    const __m256i zero = _mm256_setzero_si256();
    const __m256i low = _mm256_cvtepu8_epi32(a);
    const __m256i high = _mm256_cvtepu8_epi32(_mm_srli_si128(a, 8));
    return {(__m256)_mm256_cmpeq_epi32(low, zero), (__m256)_mm256_cmpeq_epi32(high, zero)};
}
inline Mask first_lanes(long count) {
    const __m256i number = _mm256_set1_epi32(std::clamp<long>(count, 0, LANES));
    const __m256i low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i high = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);
    return {(__m256)_mm256_cmpgt_epi32(number, low), (__m256)_mm256_cmpgt_epi32(number, high)};
}
inline Mask operator&(Mask a, Mask b) {
    return {_mm256_and_ps(a.low, b.low), _mm256_and_ps(a.high, b.high)};
}
inline Mask operator|(Mask a, Mask b) {
    return {_mm256_or_ps(a.low, b.low), _mm256_or_ps(a.high, b.high)};
}
inline Mask operator~(Mask a) {
    const __m256 all = (__m256)_mm256_set1_epi32(-1);
    return {_mm256_xor_ps(a.low, all), _mm256_xor_ps(a.high, all)};
}
inline unsigned bits(Mask mask) {
    return _mm256_movemask_ps(mask.low) | _mm256_movemask_ps(mask.high) << 8;
}
inline Floats select(Mask mask, Floats a, Floats b) {
    return {_mm256_blendv_ps(b.low, a.low, mask.low), _mm256_blendv_ps(b.high, a.high, mask.high)};
}
inline Integers select(Mask mask, Integers a, Integers b) {
    return as_integers(select(mask, as_floats(a), as_floats(b)));
}

// Memory outside the mask is neither read nor written.
inline Floats load_some(const float* from, Mask mask, Floats otherwise) {
    const Floats values{_mm256_maskload_ps(from, (__m256i)mask.low),
                        _mm256_maskload_ps(from + 8, (__m256i)mask.high)};
    return select(mask, values, otherwise);
}
inline void store_some(float* to, Mask mask, Floats values) {
    _mm256_maskstore_ps(to, (__m256i)mask.low, values.low);
    _mm256_maskstore_ps(to + 8, (__m256i)mask.high, values.high);
}

inline __m256 low_half(Floats a) { return a.low; }
inline __m256 high_half(Floats a) { return a.high; }

// Lanes with values from -32768 to 32767 as 16 bits, in order.
inline __m256i to_words(Integers values) {
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(values.low, values.high), 0xd8);
}
inline void store_words(int16_t* to, Integers values) {
    _mm256_storeu_si256((__m256i*)to, to_words(values));
}
// Lanes with values from 0 to 255.
inline void store_bytes(uint8_t* to, Integers values) {
    const __m256i words = to_words(values);
    _mm_storeu_si128((__m128i*)to, _mm_packus_epi16(_mm256_castsi256_si128(words),
                                                    _mm256_extracti128_si256(words, 1)));
}

// Products of neighbors are added to each lane: 4 of an unsigned and a signed byte, or 2 of signed
// words.
#if defined(__AVXVNNI__)
#define WITH_BYTE_PRODUCTS
inline Integers add_byte_products(Integers sums, Integers row, Integers columns) {
    return {_mm256_dpbusd_avx_epi32(sums.low, row.low, columns.low),
            _mm256_dpbusd_avx_epi32(sums.high, row.high, columns.high)};
}
inline Integers add_word_products(Integers sums, Integers row, Integers columns) {
    return {_mm256_dpwssd_avx_epi32(sums.low, row.low, columns.low),
            _mm256_dpwssd_avx_epi32(sums.high, row.high, columns.high)};
}
#elif defined(__AVX512VNNI__)  // the AVX-512 encoding, for tests
#define WITH_BYTE_PRODUCTS
inline Integers add_byte_products(Integers sums, Integers row, Integers columns) {
    return {_mm256_dpbusd_epi32(sums.low, row.low, columns.low),
            _mm256_dpbusd_epi32(sums.high, row.high, columns.high)};
}
inline Integers add_word_products(Integers sums, Integers row, Integers columns) {
    return {_mm256_dpwssd_epi32(sums.low, row.low, columns.low),
            _mm256_dpwssd_epi32(sums.high, row.high, columns.high)};
}
#else
inline Integers add_word_products(Integers sums, Integers row, Integers columns) {
    sums = {_mm256_add_epi32(sums.low, _mm256_madd_epi16(row.low, columns.low)),
            _mm256_add_epi32(sums.high, _mm256_madd_epi16(row.high, columns.high))};
    // Without this, GCC adds products first, which needs more registers than there are.
    asm("" : "+x"(sums.low));
    asm("" : "+x"(sums.high));
    return sums;
}
#endif
// Signed bytes at even and at odd places as words.
inline Integers even_bytes(Integers a) {
    return {_mm256_srai_epi16(_mm256_slli_epi16(a.low, 8), 8),
            _mm256_srai_epi16(_mm256_slli_epi16(a.high, 8), 8)};
}
inline Integers odd_bytes(Integers a) {
    return {_mm256_srai_epi16(a.low, 8), _mm256_srai_epi16(a.high, 8)};
}
// Lanes as words; of 4 neighbors the even ones are stored first.
inline void store_separated_words(uint16_t* to, Integers values) {
    values = {_mm256_shuffle_epi32(values.low, 0xd8), _mm256_shuffle_epi32(values.high, 0xd8)};
    _mm256_storeu_si256((__m256i*)to, to_words(values));
}
