// Attending heads ahead of the decoder: one best token after the other, without leaving the team.
#pragma once

#include "linear.h"
#include "memory_attention.h"

// Weights of attending heads.
struct AttendingHeads {
    Norm state_norm, token_norm, cross_norm, feed_forward_norm, norm;
    Linear fuse, queries, found, inner, outer;
};

// `steps` tokens behind each row's state.
struct Chain {
    Nodes nodes;
    Memory memory;
    int64_t steps, threads;
};

// The largest of a row; of equal ones the first.
inline long best_column(const float* row, long size) {
    Floats top = constant(-INFINITY);
    for (long at = 0; at < size; at += LANES) top = maximum(top, load(row, at, size, -INFINITY));
    top = constant(largest(top));
    for (long at = 0; at < size; at += LANES) {
        const unsigned found = bits(lanes(at, size) & equal(load(row, at, size), top));
        if (found) return at + __builtin_ctz(found);
    }
    return 0;
}

// What a chain computes with, for all rows.
struct ChainRows {
    long count, size;
    float *states, *joined, *normalized, *hidden, *queries, *inner, *logits;
    QuantizedRows rows;

    static long widest(const AttendingHeads& heads) {
        return std::max(heads.fuse.inputs, heads.outer.inputs);
    }
    // `outputs`: of the projection; 0 where nobody asks for the best column.
    static size_t bytes(const AttendingHeads& heads, long outputs, long count) {
        const long size = heads.fuse.outputs;
        return 5 * Scratch::bytes_of<float>(count * size) +
               Scratch::bytes_of<float>(count * 2 * size) +
               Scratch::bytes_of<float>(count * heads.inner.outputs) +
               Scratch::bytes_of<float>(count * outputs) +
               QuantizedRows::bytes(count, widest(heads));
    }
    ChainRows(Scratch& scratch, const AttendingHeads& heads, long outputs, long count)
        : count(count), size(heads.fuse.outputs),
          states(scratch.take<float>(count * size)),
          joined(scratch.take<float>(count * 2 * size)),
          normalized(scratch.take<float>(count * size)),
          hidden(scratch.take<float>(count * size)),
          queries(scratch.take<float>(count * size)),
          inner(scratch.take<float>(count * heads.inner.outputs)),
          logits(scratch.take<float>(count * outputs)),
          rows(scratch, count, widest(heads)) {}
};

// The best column of each row's state, `stride` numbers apart; the team shares the projection.
inline void choose(
    const AttendingHeads& heads, const Linear& projection, const ChainRows& chain, int64_t* best,
    long stride) {
    quantize_rows(chain.states, chain.count, chain.size, &heads.norm, chain.normalized, chain.rows);
    multiply_linear(projection, chain.rows, chain.count, nullptr, chain.logits);
#pragma omp for schedule(static)
    for (long row = 0; row < chain.count; ++row)
        best[row * stride] = best_column(chain.logits + row * projection.outputs, projection.outputs);
}

// States one token further; `embed(row, to)` writes the embedding of each row's.
template <class Embed>
void go_on(
    const AttendingHeads& heads, const Chain& call, const ChainRows& chain, Embed embed) {
    const long size = chain.size, count = chain.count;
    auto product = [&](const Linear& linear, const Norm* norm, const float* from,
                       const float* residual, float* to) {
        quantize_rows(from, count, linear.inputs, norm, chain.normalized, chain.rows);
        multiply_linear(linear, chain.rows, count, residual, to);
    };
#pragma omp for schedule(static)
    for (long row = 0; row < count; ++row) {
        float* state = chain.hidden + row * size;
        float* both = chain.joined + row * 2 * size;
        normalize(chain.states + row * size, size, heads.state_norm, state);
        std::copy(state, state + size, both);
        embed(row, both + size);
        normalize(both + size, size, heads.token_norm, both + size);
    }
    product(heads.fuse, nullptr, chain.joined, chain.hidden, chain.states);
    product(heads.queries, &heads.cross_norm, chain.states, nullptr, chain.queries);
    attend_memory(call.nodes, call.memory, chain.queries, chain.hidden);
    product(heads.found, nullptr, chain.hidden, chain.states, chain.states);
    product(heads.inner, &heads.feed_forward_norm, chain.states, nullptr, chain.inner);
    product(heads.outer, nullptr, chain.inner, chain.states, chain.states);
}
