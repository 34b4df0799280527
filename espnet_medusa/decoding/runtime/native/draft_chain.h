// Drafts of attending heads: chains of best tokens, computed in one parallel region.
#pragma once

#include "best_token.h"
#include "linear.h"
#include "cross_attention.h"
#include "shortlist.h"

// Weights of attending heads.
struct AttendingHeads {
    Norm state_norm, token_norm, cross_norm, feed_forward_norm, output;
    Linear fuse, queries, cross_output, inner, outer;
};

constexpr int64_t MISSING = -1;  // after the end of a chain; as in tree/proposer.py

// A draft of up to `steps` tokens from each row's state.
struct Chain {
    Nodes nodes;
    CrossKeysValues cross;
    int64_t steps, threads;
};

// Working memory of a chain, for all rows.
struct ChainRows {
    long count, size;
    float *states, *joined, *normalized, *hidden, *queries, *inner, *logits, *log_probs;
    QuantizedRows rows;

    // `outputs`: of the projection; 0 if best columns are not needed.
    ChainRows(Scratch& scratch, const AttendingHeads& heads, long outputs, long count)
        : count(count), size(heads.fuse.outputs),
          states(scratch.take<float>(count * size)),
          joined(scratch.take<float>(count * 2 * size)),
          normalized(scratch.take<float>(count * size)),
          hidden(scratch.take<float>(count * size)),
          queries(scratch.take<float>(count * size)),
          inner(scratch.take<float>(count * heads.inner.outputs)),
          logits(scratch.take<float>(count * outputs)),
          log_probs(scratch.take<float>(count)),
          rows(scratch, count, std::max(heads.fuse.inputs, heads.outer.inputs)) {}
};

// Writes the best column of each row's state, among the shortlist's panels if there is one, to
// `columns`, `stride` apart. If `least` is finite, adds its log-probability among these columns to
// the row's; if this is below `least`, writes MISSING instead.
inline void pick_best_columns(
    const AttendingHeads& heads, const Linear& projection, const Shortlist& list,
    const ChainRows& chain, const ShortlistRows& work, float least, int64_t* columns, long stride) {
    const long panels = list.panels, outputs = panels ? panels * PANEL : projection.outputs;
    quantize_rows(
        chain.states, chain.count, chain.size, &heads.output, chain.normalized, chain.rows);
    if (panels)
        multiply_shortlisted(projection, list, chain.rows, chain.count, work, chain.logits);
    else
        multiply_linear(projection, chain.rows, chain.count, nullptr, chain.logits);
#pragma omp for schedule(static)
    for (long row = 0; row < chain.count; ++row) {
        const float* logits = chain.logits + row * outputs;
        const long best = find_largest(logits, outputs, nullptr, -1).allowed.token;
        if (least > -INFINITY)
            chain.log_probs[row] -= log_of_sum(logits, outputs, logits[best]);
        long column = best;
        if (panels) {
            column = work.panel(list, row, best / PANEL) * PANEL + best % PANEL;
            column = std::min<long>(column, projection.outputs - 1);  // of NaN, any column
        }
        columns[row * stride] = chain.log_probs[row] < least ? MISSING : column;
    }
}

// Advances states by one token; `embed(row, to)` writes the token's embedding.
template <class Embed>
void advance(
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
    attend_cross(call.nodes, call.cross, chain.queries, chain.hidden);
    product(heads.cross_output, nullptr, chain.hidden, chain.states, chain.states);
    product(heads.inner, &heads.feed_forward_norm, chain.states, nullptr, chain.inner);
    product(heads.outer, nullptr, chain.inner, chain.states, chain.states);
}
