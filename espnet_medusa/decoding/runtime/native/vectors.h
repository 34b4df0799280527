// Vectors of 16 floats: loads and stores of whole or partial vectors, and math functions.
#pragma once

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

// HALVES: tests on processors with AVX512_VNNI define it to compile avx2.h.
#if defined(__AVX512VNNI__) && !defined(HALVES)
#include "avx512.h"
#else
#include "avx2.h"
#endif

inline Floats to_floats(Floats a) { return a; }

inline long round_up(long number, long step) { return (number + step - 1) / step * step; }

// Lanes before `length` of the vector that starts at `place`.
inline Mask lanes(long place, long length) { return first_lanes(length - place); }

// The branch is nearly always taken and faster than a mask.
inline Floats load(const float* from, long place, long length, float otherwise = 0.0f) {
    if (length - place >= LANES) return load(from + place);
    return load_some(from + place, lanes(place, length), constant(otherwise));
}

inline Integers load(const int32_t* from, long place, long length) {
    return as_integers(load((const float*)from, place, length));
}

inline void store(float* to, long place, long length, Floats values) {
    if (length - place >= LANES) return store(to + place, values);
    store_some(to + place, lanes(place, length), values);
}

// The same 32 bits from memory in every lane.
inline Integers repeat(const void* from) {
    int32_t bits;
    std::memcpy(&bits, from, sizeof(bits));
    return constant(bits);
}

inline float sum(Floats values) {
    const __m256 half = low_half(values) + high_half(values);
    __m128 quarter = _mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1);
    quarter += _mm_movehl_ps(quarter, quarter);
    return quarter[0] + quarter[1];
}

inline float largest(Floats values) {
    const __m256 half = _mm256_max_ps(low_half(values), high_half(values));
    __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quarter = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return std::max(quarter[0], quarter[1]);
}

// The sum of each of four vectors.
inline __m128 sums(Floats a, Floats b, Floats c, Floats d) {
    auto half = [](Floats values) { return low_half(values) + high_half(values); };
    const __m256 ab = _mm256_hadd_ps(half(a), half(b)), cd = _mm256_hadd_ps(half(c), half(d));
    const __m256 of_lanes = _mm256_hadd_ps(ab, cd);
    return _mm256_castps256_ps128(of_lanes) + _mm256_extractf128_ps(of_lanes, 1);
}

// 2^x for x below 127.5, relative error 3e-7; 0 below -126, where results would be subnormal.
inline Floats power_of_two(Floats x) {
    const Floats whole = round_to_even(x), rest = x - whole;
    Floats sum = constant(1.33908633e-3f);
    for (float next : {9.67603177e-3f, 5.55035695e-2f, 2.40221068e-1f, 6.93147182e-1f, 1.00000012f})
        sum = multiply_add(sum, rest, constant(next));
    return select(greater(x, constant(-126.0f)), scale(sum, whole), constant(0.0f));
}

constexpr float LOG2_E = 1.44269504f;

inline Floats exponential(Floats x) { return power_of_two(x * constant(LOG2_E)); }

// x Phi(x); erf as in Abramowitz and Stegun 7.1.26, absolute error 1.5e-7.
inline Floats gelu(Floats x) {
    const Floats scaled = x * constant(0.70710678f), size = absolute(scaled);
    const Floats one = constant(1.0f), zero = constant(0.0f);
    const Floats t = one / multiply_add(size, constant(0.3275911f), one);
    Floats sum = constant(-1.061405429f);  // minus the polynomial
    for (float next : {1.453152027f, -1.421413741f, 0.284496736f, -0.254829592f, 0.0f})
        sum = multiply_add(sum, t, constant(next));
    Floats erf = multiply_add(sum, exponential(zero - size * size), one);
    erf = select(greater(zero, x), zero - erf, erf);
    return x * constant(0.5f) * (one + erf);
}

inline Floats relu(Floats x) { return maximum(x, constant(0.0f)); }

inline Floats silu(Floats x) {
    // exp(88) is finite; below x = -88 the result is nearly 0 in either case.
    const Floats minus = constant(0.0f) - maximum(x, constant(-88.0f));
    return x / (constant(1.0f) + exponential(minus));
}

// The upper half of each lane is the nearest bfloat16, ties to even.
inline Integers round_upper_half(Floats values) {
    const Integers integers = as_integers(values);
    return integers + ((integers >> 16) & constant(1)) + constant(0x7fff);
}

inline Integers upper_half(Integers values) { return values & constant((int)0xffff0000); }

inline Floats round_to_bfloat16(Floats values) {
    return as_floats(upper_half(round_upper_half(values)));
}

#ifndef WITH_BFLOAT16_PRODUCTS
inline void store_bfloat16(uint16_t* to, Floats values) {
    store_words((int16_t*)to, round_upper_half(values) >> 16);
}
#endif

// Working memory of one thread: reused by later calls, enlarged if necessary.
class Scratch {
  public:
    // Pointers from earlier `take` calls become invalid.
    void reset() {
        if (blocks.size() > 1) blocks.erase(blocks.begin(), blocks.end() - 1);
        used = 0;
    }

    template <class Type>
    Type* take(long count) {
        const size_t bytes = round_up(count * sizeof(Type), 64);
        if (blocks.empty() || used + bytes > size) {
            size = std::max<size_t>({bytes, 2 * size, 64});
            blocks.emplace_back(static_cast<char*>(std::aligned_alloc(64, size)));
            used = 0;
        }
        used += bytes;
        return reinterpret_cast<Type*>(blocks.back().get() + used - bytes);
    }

  private:
    struct Free {
        void operator()(char* pointer) const { std::free(pointer); }
    };
    std::vector<std::unique_ptr<char, Free>> blocks;  // the last one is the largest
    size_t size = 0, used = 0;                        // of the last block
};
