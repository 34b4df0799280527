// Attention of new nodes to their utterance's memory, in bfloat16 with sums in float32.
#pragma once

#include <cfloat>

#include "nodes.h"
#include "panel.h"

// Keys and values of an utterance's frames, for each head as panels of bfloat16:
// keys with frames as columns, then values with frames as depth.
struct Memory {
    const char* packed;  // (U, heads, bytes_per_head)
    int64_t frames;
    const float* mask;   // (U, frames) additive: padding at the end; or null

    static long columns(long head_size) { return round_up(head_size, PANEL); }
    static long padded(long frames) { return round_up(frames, PANEL); }
    static long bytes_per_head(long frames, long head_size) {
        return 2 * padded(frames) * columns(head_size) * sizeof(uint16_t);
    }

    long frames_of(long utterance) const {
        long count = frames;
        if (mask != nullptr)
            while (count > 0 && mask[utterance * frames + count - 1] < -1e30f) --count;
        return count;
    }
};

// Up to PANEL queries of one head, and room for what comes of them.
struct Queries {
    const float* values;  // (count, stride)
    int count;
    long stride, size;
    uint16_t* rounded;   // (PANEL, columns)
    float* scores;       // (padded / PANEL, PANEL queries, PANEL frames)
    uint16_t* weights;   // (PANEL, weight_stride)
    long weight_stride;  // no power of two, as in QuantizedRows

    Queries(const float* values, int count, long stride, long size, long padded, Scratch& scratch)
        : values(values), count(count), stride(stride), size(size),
          weight_stride(padded + STEP_BYTES / 2) {
        const long of_rounded = PANEL * Memory::columns(size);
        scratch.reset(
            Scratch::bytes_of<uint16_t>(of_rounded) + Scratch::bytes_of<float>(PANEL * padded) +
            Scratch::bytes_of<uint16_t>(PANEL * weight_stride));
        rounded = scratch.take<uint16_t>(of_rounded);
        scores = scratch.take<float>(PANEL * padded);
        weights = scratch.take<uint16_t>(PANEL * weight_stride);
    }
};

// Queries with the softmax's scale, zeros behind the head's size.
inline Rows round_queries(const Queries& queries) {
    const long columns = Memory::columns(queries.size);
    // Weights are powers of 2.
    const __m512 scale = constant(LOG2_E / std::sqrt((float)queries.size));
    for (int row = 0; row < queries.count; ++row)
        for (long at = 0; at < columns; at += LANES) {
            const __m512 some = load(queries.values + row * queries.stride, at, queries.size);
            _mm256_storeu_si256((__m256i*)(queries.rounded + row * columns + at),
                                to_bfloat16(_mm512_mul_ps(some, scale)));
        }
    return {queries.rounded, long(columns * sizeof(uint16_t)), queries.count};
}

// One query's scores to weights, not normalized, 0 behind the frames; their sum. Meanwhile `next`
// comes nearer.
inline float round_weights(
    const Queries& queries, int row, long frames, const char* next, long next_bytes) {
    const float* scores = queries.scores + row * PANEL;
    uint16_t* weights = queries.weights + row * queries.weight_stride;
    auto each = [&](auto visit) {
        for (long panel = 0; panel < frames; panel += PANEL)
            for (long at = panel; at < panel + PANEL; at += LANES)
                visit(at, _mm512_loadu_ps(scores + panel * PANEL + at - panel), lanes(at, frames));
    };
    __m512 largest = constant(-FLT_MAX), total = _mm512_setzero_ps();
    each([&](long, __m512 some, __mmask16 present) {
        largest = _mm512_mask_max_ps(largest, present, largest, some);
    });
    const __m512 top = constant(_mm512_reduce_max_ps(largest));
    const long part = next_bytes / std::max<long>(Memory::padded(frames) / LANES, 1);
    each([&](long at, __m512 some, __mmask16 present) {
        for (long byte = 0; byte < part; byte += 64)
            _mm_prefetch(next + at / LANES * part + byte, _MM_HINT_T1);
        const __m512 weight = _mm512_maskz_mov_ps(present, power_of_two(_mm512_sub_ps(some, top)));
        total = _mm512_add_ps(total, weight);
        _mm256_storeu_si256((__m256i*)(weights + at), to_bfloat16(weight));
    });
    return _mm512_reduce_add_ps(total);
}

// Queries of one head over the first `frames` of an utterance's `all_frames`: (count, stride).
inline void attend_frames(
    const Queries& queries, const char* packed, long frames, long all_frames, float* to) {
    const long frame_bytes = Memory::columns(queries.size) * sizeof(uint16_t);
    const long key_steps = Memory::columns(queries.size) / PANEL;
    const long steps = Memory::padded(frames) / PANEL;
    const long all_steps = Memory::padded(all_frames) / PANEL;  // that the layout has
    const char* values = packed + Memory::padded(all_frames) * frame_bytes;

    Tiles tiles(queries.count);
    const Rows rounded = round_queries(queries);
    for (long step = 0; step < steps; ++step)
        multiply<Bfloat16>(rounded, packed + step * PANEL * frame_bytes, key_steps, key_steps,
                           queries.scores + step * PANEL * PANEL);
    float scales[PANEL];
    const long share = all_steps * PANEL * frame_bytes / queries.count;
    for (int row = 0; row < queries.count; ++row) {
        const float total = round_weights(queries, row, frames, values + row * share, share);
        scales[row] = total > 0 ? 1 / total : 0.0f;
    }
    const Rows weights{queries.weights, long(queries.weight_stride * sizeof(uint16_t)),
                       queries.count};
    alignas(64) float sums[PANEL * PANEL];
    for (long begin = 0; begin < queries.size; begin += PANEL) {
        multiply<Bfloat16>(weights, values + begin * all_steps * STEP_BYTES, all_steps, steps, sums);
        for (int row = 0; row < queries.count; ++row)
            for (long at = begin; at < begin + PANEL; at += LANES) {
                const __m512 sum = _mm512_loadu_ps(sums + row * PANEL + at - begin);
                store(to + row * queries.stride, at, queries.size,
                      _mm512_mul_ps(sum, constant(scales[row])));
            }
    }
}

// (rows, heads, head size) of queries (rows, heads, head size).
inline void attend_memory(
    const Nodes& nodes, const Memory& memory, const float* queries, float* to) {
    const long size = nodes.head_size, width = nodes.width();
    const long bytes = Memory::bytes_per_head(memory.frames, size);
    static thread_local Scratch scratch;
#pragma omp for schedule(static) collapse(2)
    for (long utterance = 0; utterance < nodes.utterances; ++utterance) {
        for (long head = 0; head < nodes.heads; ++head) {
            const char* packed = memory.packed + (utterance * nodes.heads + head) * bytes;
            const long frames = memory.frames_of(utterance), end = nodes.first_row[utterance + 1];
            for (long row = nodes.first_row[utterance]; row < end; row += PANEL) {
                const long place = row * width + head * size;
                const Queries some(queries + place, std::min<long>(PANEL, end - row), width, size,
                                   Memory::padded(frames), scratch);
                attend_frames(some, packed, frames, memory.frames, to + place);
            }
        }
    }
}

// One frame's key to 32-bit pairs that are TILE pairs apart: `steps` of depth.
inline void pack_key(const float* key, long size, long steps, uint32_t* to) {
    const __m512i apart = _mm512_mullo_epi32(
        _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
        _mm512_set1_epi32(TILE));
    for (long step = 0; step < steps; ++step) {
        const __m256i first = to_bfloat16(load(key, step * PANEL, size));
        const __m256i second = to_bfloat16(load(key, step * PANEL + LANES, size));
        const __m512i pairs = _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
        _mm512_i32scatter_epi32(to + step * TILE * TILE, apart, pairs, 4);
    }
}

// Keys and values of some frames and one head: of every frame `stride` numbers, in which the head's
// key stands first and its value `apart` behind it.
struct KeysValues {
    const float* keys;
    long stride, apart, size;

    const float* key(long frame) const { return keys + frame * stride; }
    const float* value(long frame) const { return key(frame) + apart; }
};

// Lays out `count` of a head's `frames` from `first` on, a multiple of PANEL; with the last of them
// zeros behind the end.
inline void pack_head(
    const KeysValues& from, long first, long count, long frames, char* packed) {
    const long columns = Memory::columns(from.size), padded = Memory::padded(frames);
    const long steps = columns / PANEL, value_steps = padded / PANEL;
    auto* to_keys = (uint32_t*)packed;
    uint32_t* to_values = to_keys + padded * columns / 2;
    for (long place = 0; place < Memory::padded(count); place += 2) {
        const long frame = first + place, last = count - place;  // 1: the odd one is not there
        // Of frames behind the end nothing is read.
        const long even = last > 0 ? place : 0, odd = last > 1 ? place + 1 : 0;
        const long even_size = last > 0 ? from.size : 0, odd_size = last > 1 ? from.size : 0;
        uint32_t* to_key = to_keys + frame / TILE * steps * TILE * TILE + frame % TILE;
        pack_key(from.key(even), even_size, steps, to_key);
        pack_key(from.key(odd), odd_size, steps, to_key + 1);
        for (long at = 0; at < columns; at += LANES) {
            const long block = at / TILE * value_steps + frame / PANEL;
            const __m512 first_value = load(from.value(even), at, even_size);
            _mm512_storeu_si512(
                to_values + (block * TILE + frame % PANEL / 2) * TILE,
                to_pairs(first_value, load(from.value(odd), at, odd_size)));
        }
    }
}
