// Linear layers in 8-bit integers or bfloat16, with the operations before and after the product.
#pragma once

#include "panel.h"

enum Activation { NONE, GELU, SILU, RELU };

// act(x W^T + b), W of (outputs, inputs); LinearArguments in library.py.
struct Linear {
    int64_t outputs, inputs, bits;  // of a weight: 4, 8 or 16
    const char* blocks;        // of W; outputs are padded to PANEL, inputs to whole steps
    const float* scales;       // of outputs; null if W is bfloat16 (16 bits), not integers
    const int32_t* corrections;  // 128 times the sum of an output's integers
    const float* bias;         // or null
    int64_t activation;

    bool is_bfloat16() const { return bits == 16; }
    long steps() const {
        return round_up(inputs * (is_bfloat16() ? sizeof(uint16_t) : 1), STEP_BYTES) / STEP_BYTES;
    }
    // Bytes of PANEL outputs in blocks; not for bfloat16.
    long panel_bytes() const { return steps() * PANEL * STEP_BYTES * bits / 8; }
    const char* panel(long index) const { return blocks + index * panel_bytes(); }
};

// The index of a weight in blocks of bytes.
inline long place_in_blocks(long output, long input, long steps) {
    const long step = output / TILE * steps + input / STEP_BYTES, place = input % STEP_BYTES;
    return ((step * TILE + place / 4) * TILE + output % TILE) * 4 + place % 4;
}

// One output's weights, of 8 bits, dequantized.
inline void unpack_output(const Linear& linear, long output, float* to) {
    const auto* integers = (const int8_t*)linear.blocks;
    for (long at = 0; at < linear.inputs; ++at)
        to[at] = linear.scales[output] * integers[place_in_blocks(output, at, linear.steps())];
}

struct Norm {
    const float* weight;
    const float* bias;
    double epsilon;
};

// Rows in unsigned 8-bit integers with one scale per row; ZERO_POINT represents 0.
struct QuantizedRows {
    Bytes::Row* values;
    float* scales;
    long stride;

    // Seldom a power of two, so that rows of a tile are in different sets of the cache.
    static long stride_of(long size) { return round_up(size, STEP_BYTES) + STEP_BYTES; }
    QuantizedRows(Scratch& scratch, long rows, long size)
        : values(scratch.take<Bytes::Row>(round_up(rows, TILE) * stride_of(size))),
          scales(scratch.take<float>(rows)),
          stride(stride_of(size)) {}

    Rows from(long row, int count) const {
        return {values + row * stride, stride * long(sizeof(Bytes::Row)), count};
    }
};

constexpr float INT8_MAX_VALUE = 127.0f;
constexpr int ZERO_POINT = 128;

// Quantizes one row; values after its end are multiplied with weights of 0.
inline void quantize(const float* row, long size, Bytes::Row* values, float* scale) {
    Floats top = constant(1e-20f);
    for (long at = 0; at < size; at += LANES) top = maximum(top, absolute(load(row, at, size)));
    const float amplitude = largest(top);
    *scale = amplitude / INT8_MAX_VALUE;
    const Floats inverse = constant(INT8_MAX_VALUE / amplitude);
    for (long at = 0; at < size; at += LANES)
        Bytes::store_row(
            values + at, to_integers(load(row, at, size) * inverse) + constant(ZERO_POINT));
}

inline void normalize(const float* row, long size, const Norm& norm, float* to) {
    Floats total = constant(0.0f), squares = constant(0.0f);
    for (long at = 0; at < size; at += LANES) total = total + load(row, at, size);
    const float mean = sum(total) / size;
    for (long at = 0; at < size; at += LANES) {
        const Floats off = load(row, at, size, mean) - constant(mean);
        squares = multiply_add(off, off, squares);
    }
    const float variance = sum(squares) / size;
    const Floats inverse = constant(1.0f / std::sqrt(variance + (float)norm.epsilon));
    for (long at = 0; at < size; at += LANES) {
        const Floats off = (load(row, at, size) - constant(mean)) * inverse;
        const Floats weight = load(norm.weight, at, size), bias = load(norm.bias, at, size);
        store(to, at, size, multiply_add(off, weight, bias));
    }
}

// Quantizes rows, after `norm` unless it is null; threads share the rows. `normalized` is working
// memory for (rows, size).
inline void quantize_rows(
    const float* rows, long count, long size, const Norm* norm, float* normalized,
    const QuantizedRows& to) {
#pragma omp for schedule(static)
    for (long row = 0; row < count; ++row) {
        const float* from = rows + row * size;
        if (norm != nullptr) {
            normalize(from, size, *norm, normalized + row * size);
            from = normalized + row * size;
        }
        quantize(from, size, to.values + row * to.stride, to.scales + row);
    }
}

// Sums as floats, without the contribution of ZERO_POINT.
inline Floats numbers(const int32_t* sums, Integers correction) {
    return to_floats(load(sums) - correction);
}

inline Floats numbers(const float* sums, Integers) { return load(sums); }

// Scales, corrections and bias of LANES outputs. After the last output, a bias is `otherwise`.
struct Outputs {
    Floats scale, bias;
    Integers correction;

    Outputs(const Linear& linear, long first, float otherwise = 0.0f)
        : scale(linear.scales ? load(linear.scales, first, linear.outputs) : constant(1.0f)),
          bias(linear.bias ? load(linear.bias, first, linear.outputs, otherwise) : constant(0.0f)),
          correction(
              linear.scales ? load(linear.corrections, first, linear.outputs) : constant(0)) {}

    template <class Sum>
    Floats from(const Sum* sums, float row_scale) const {
        return multiply_add(numbers(sums, correction) * scale, constant(row_scale), bias);
    }
};

// Turns a panel of sums into outputs: scales, bias, activation, residual.
template <class Sum>
void finish(
    const Linear& linear, long column, const Sum* sums, const float* row_scales, int rows,
    const float* residual, float* to) {
    const long size = linear.outputs;
    for (long at = column; at < std::min<long>(column + PANEL, size); at += LANES) {
        // Loaded here, because the compiler cannot exclude that storing outputs changes them.
        const Outputs outputs(linear, at);
        for (int row = 0; row < rows; ++row) {
            const float row_scale = linear.is_bfloat16() ? 1.0f : row_scales[row];
            Floats value = outputs.from(sums + row * PANEL + (at - column), row_scale);
            if (linear.activation == GELU) value = gelu(value);
            if (linear.activation == SILU) value = silu(value);
            if (linear.activation == RELU) value = relu(value);
            if (residual != nullptr) value = value + load(residual + row * size, at, size);
            store(to + row * size, at, size, value);
        }
    }
}

// Multiplies rows with a panel of 4 or 8 bits; prefetches the panel `next`.
inline void multiply_panel(
    const Linear& linear, long panel, long next, const Rows& rows, int32_t* sums) {
    const long steps = linear.steps();
    const auto product = linear.bits == 4 ? multiply<Nibbles> : multiply<Bytes>;
    product(rows, linear.panel(panel), steps, steps, sums, linear.panel(next));
}

// Multiplies quantized rows; threads share the outputs, so that each weight is read once.
inline void multiply_linear(
    const Linear& linear, const QuantizedRows& rows, long count, const float* residual,
    float* to) {
    const long size = linear.outputs;
    Tiles tiles(count);
    alignas(64) int32_t sums[PANEL * PANEL];
#pragma omp for schedule(static)
    for (long column = 0; column < size; column += PANEL) {
        const long panel = column / PANEL;
        for (long row = 0; row < count; row += PANEL) {
            const int in_panel = std::min<long>(count - row, PANEL);
            multiply_panel(linear, panel, panel + 1, rows.from(row, in_panel), sums);
            finish(
                linear, column, sums, rows.scales + row, in_panel,
                residual ? residual + row * size : nullptr, to + row * size);
        }
    }
}
