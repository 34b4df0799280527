// The functions that Python calls (SIGNATURES in library.py).
#include "best_token.h"
#include "draft_chain.h"
#include "encoder.h"
#include "linear.h"
#include "cross_attention.h"
#include "shortlist.h"
#include "top_tokens.h"
#include "tree_attention.h"

#ifdef WITH_TILES
#include <sys/syscall.h>
#include <unistd.h>
#endif

// Weights of a decoder layer; LayerArguments in library.py.
struct Layer {
    Norm self_norm, cross_norm, feed_forward_norm;
    Linear queries_keys_values, self_output, cross_queries, cross_output, inner, outer;
};

// Arguments of one decoder call; CallArguments in library.py.
struct Call {
    Nodes nodes;
    Tree tree;
    CrossKeysValues cross;
    int64_t threads;
};

static void multiply_normalized(
    const Linear& linear, const Norm* norm, const float* from, long count, float* normalized,
    const QuantizedRows& rows, const float* residual, float* to) {
    quantize_rows(from, count, linear.inputs, norm, normalized, rows);
    multiply_linear(linear, rows, count, residual, to);
}

extern "C" {

// Requests AMX registers from Linux. Returns 0 if they are permitted or not needed.
int request_tiles() {
#ifdef WITH_TILES
    constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA);
#else
    return 0;
#endif
}

int64_t cross_bytes(int64_t frames, int64_t size) {
    return CrossKeysValues::bytes_per_head(frames, size);
}

// Quantizes weights (outputs, inputs) to blocks of 4 or 8 bits, scales and corrections; `blocks`
// must be zeros. Integers of 4 bits are used as multiples of 16.
void pack_weights(
    const float* weights, int64_t outputs, int64_t inputs, int64_t bits, int8_t* blocks,
    float* scales, int32_t* corrections, int64_t threads) {
    const long steps = round_up(inputs, STEP_BYTES) / STEP_BYTES, unit = bits == 4 ? 16 : 1;
    const float most = bits == 4 ? 7 : INT8_MAX_VALUE;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long output = 0; output < outputs; ++output) {
        const float* row = weights + output * inputs;
        float largest = 1e-20f;
        for (long at = 0; at < inputs; ++at) largest = std::max(largest, std::abs(row[at]));
        int32_t sum = 0;
        for (long at = 0; at < inputs; ++at) {
            const long integer = std::lrintf(row[at] * (most / largest));
            const long place = place_in_blocks(output, at, steps), vector = place / STEP_BYTES;
            if (bits == 8)
                blocks[place] = integer;
            else  // two vectors in one
                blocks[place - (vector + 1) / 2 * STEP_BYTES] |=
                    vector % 2 ? integer << 4 : integer & 15;
            sum += integer;
        }
        scales[output] = largest / (most * unit);
        corrections[output] = ZERO_POINT * unit * sum;
    }
}

// Rounds weights (outputs, inputs) to blocks of bfloat16; `blocks` must be zeros.
void pack_bfloat16_weights(
    const float* weights, int64_t outputs, int64_t inputs, uint16_t* blocks, int64_t threads) {
    const long steps = round_up(inputs, PANEL) / PANEL;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long output = 0; output < outputs; ++output)
        pack_column<Bfloat16>(
            weights + output * inputs, inputs, steps,
            (uint32_t*)blocks + (output / TILE * steps * TILE * TILE) + output % TILE);
}

// Multiplies many rows (count, inputs), `stride` numbers apart, to (count, outputs); threads share
// blocks of rows.
void multiply_blocks(
    const Linear* linear, const float* from, int64_t stride, int64_t count, float* to,
    int64_t threads) {
#pragma omp parallel num_threads(threads)
    {
        static thread_local Scratch scratch;
        scratch.reset();
        const Block block(scratch, linear->inputs);
        each_block(count, threads, [&](long row, long in_block) {
            multiply_block(*linear, nullptr, from + row * stride, stride, in_block, block, nullptr,
                           to + row * linear->outputs);
        });
    }
}

// Computes encoder layers and the norm after them for (rows, D), in place. Working memory:
// `queries` for (rows, D), `packed` for the keys and values of all heads.
void encode_layers(
    const EncoderLayer* layers, int64_t count, const Norm* norm, const Frames* frames,
    float* hidden, float* queries, char* packed) {
    const long width = frames->width();
#pragma omp parallel num_threads(frames->threads)
    {
        for (long layer = 0; layer < count; ++layer)
            encode_layer(layers[layer], *frames, hidden, queries, packed);
#pragma omp for schedule(static)
        for (long row = 0; row < frames->rows(); ++row)
            normalize(hidden + row * width, width, *norm, hidden + row * width);
    }
}

// Replaces queries (rows, heads, head size) by the attention's result, as in `encode_layers`.
void attend(const Frames* frames, const char* packed, float* queries) {
#pragma omp parallel num_threads(frames->threads)
    attend_all_frames(*frames, packed, queries);
}

// Dequantizes the weights of `count` outputs: (count, inputs). For a few outputs, one thread is
// faster than several.
void unpack_weights(
    const Linear* linear, const int64_t* outputs, int64_t count, float* to, int64_t threads) {
#pragma omp parallel for num_threads(count > TILE ? threads : 1) schedule(static)
    for (long row = 0; row < count; ++row)
        unpack_output(*linear, outputs[row], to + row * linear->inputs);
}

// Multiplies (count, inputs) to (count, outputs).
void linear(
    const Linear* linear, const float* from, int64_t count, const float* residual, float* to,
    int64_t threads) {
    static thread_local Scratch scratch;
    scratch.reset();
    const QuantizedRows rows(scratch, count, linear->inputs);
#pragma omp parallel num_threads(threads)
    multiply_normalized(*linear, nullptr, from, count, nullptr, rows, residual, to);
}

// Normalizes (count, size) in one thread.
void normalize_rows(const Norm* norm, const float* from, int64_t count, int64_t size, float* to) {
    for (long row = 0; row < count; ++row) normalize(from + row * size, size, *norm, to + row * size);
}

// Projects encoder output (utterances, frames, D) to keys and values.
void project_cross(
    const Linear* linear, const float* encoder_out, int64_t utterances, int64_t frames, int64_t heads,
    char* packed, int64_t threads) {
    const Frames all{utterances, frames, heads, linear->outputs / (2 * heads), nullptr, nullptr,
                     threads};
#pragma omp parallel num_threads(threads)
    project_frames(*linear, nullptr, all, encoder_out, nullptr, packed);
}

// Finds the best token of each row of logits (count, size), with normalizer and log-probability.
void best_tokens(
    const float* logits, int64_t count, int64_t size, const Restriction* restriction,
    int64_t* tokens, float* normalizers, float* log_probs, int64_t threads) {
#pragma omp parallel for num_threads(std::clamp<int64_t>(count, 1, threads)) schedule(static)
    for (long row = 0; row < count; ++row) {
        const float* of_row = logits + row * size;
        find_best_token(of_row, size, *restriction, row, tokens + row, normalizers + row);
        log_probs[row] = of_row[tokens[row]] - normalizers[row];
    }
}

// Finds the `count` best tokens of each row of logits (rows, size), and their log-probabilities.
void top_tokens(
    const float* logits, int64_t rows, int64_t size, const Restriction* restriction, int64_t count,
    int64_t* tokens, float* log_probs, int64_t threads) {
#pragma omp parallel num_threads(std::clamp<int64_t>(rows, 1, threads))
    {
        static thread_local Scratch scratch;
        scratch.reset();
        auto* ranked = scratch.take<Scored>(count);
#pragma omp for schedule(static)
        for (long row = 0; row < rows; ++row)
            find_top_tokens(logits + row * size, size, *restriction, row, count, ranked,
                            tokens + row * count, log_probs + row * count);
    }
}

// Packs keys and values (utterances, frames, 2, heads, head size) in the layout of CrossKeysValues.
void pack_cross(
    const float* keys_values, int64_t utterances, int64_t frames, int64_t heads, int64_t size,
    char* packed, int64_t threads) {
    const long width = heads * size;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long head = 0; head < utterances * heads; ++head) {
        const float* keys = keys_values + head / heads * frames * 2 * width + head % heads * size;
        pack_head({keys, 2 * width, width, size}, 0, frames, frames,
                  packed + head * CrossKeysValues::bytes_per_head(frames, size));
    }
}

// Drafts columns (rows, steps) of the projection greedily from states (rows, D). If `embedded`
// (rows, D) is not null, first advances the states by the token with these embeddings. A row ends
// before the column that brings its log-probability below `least`. If `vocabulary` is not null, its
// tokens replace the columns.
void draft_chain(
    const AttendingHeads* heads, const Linear* projection, const Shortlist* list, const Chain* call,
    const float* states, const float* embedded, float least, const int64_t* vocabulary,
    int64_t* columns) {
    const long count = call->nodes.rows(), steps = call->steps;
    static thread_local Scratch scratch;
    scratch.reset();
    const ChainRows chain(scratch, *heads, projection->outputs, count);
    const ShortlistRows work(scratch, *list, count);
    std::copy(states, states + count * chain.size, chain.states);
    std::fill(chain.log_probs, chain.log_probs + count, 0.0f);
    std::fill(columns, columns + count * steps, MISSING);
    auto copy_embedded = [&](long row, float* to) {
        std::copy_n(embedded + row * chain.size, chain.size, to);
    };
#pragma omp parallel num_threads(call->threads)
    {
        if (embedded != nullptr) advance(*heads, *call, chain, copy_embedded);
        for (long step = 0; step < steps; ++step) {
            if (step > 0) {
                const int64_t* last = columns + step - 1;
                bool ended = true;
                for (long row = 0; row < count; ++row) ended &= last[row * steps] == MISSING;
                if (ended) break;
                advance(*heads, *call, chain, [&](long row, float* to) {
                    unpack_output(*projection, std::max<int64_t>(last[row * steps], 0), to);
                });
            }
            pick_best_columns(
                *heads, *projection, *list, chain, work, least, columns + step, steps);
        }
    }
    if (vocabulary != nullptr)
        for (long at = 0; at < count * steps; ++at)
            if (columns[at] != MISSING) columns[at] = vocabulary[columns[at]];
}

// Advances states (rows, D) by one token with embeddings (rows, D).
void advance_states(
    const AttendingHeads* heads, const Chain* call, const float* states, const float* embedded,
    float* to) {
    const long count = call->nodes.rows();
    static thread_local Scratch scratch;
    scratch.reset();
    const ChainRows chain(scratch, *heads, 0, count);
    std::copy(states, states + count * chain.size, chain.states);
#pragma omp parallel num_threads(call->threads)
    advance(*heads, *call, chain, [&](long row, float* place) {
        std::copy(embedded + row * chain.size, embedded + (row + 1) * chain.size, place);
    });
    std::copy(chain.states, chain.states + count * chain.size, to);
}

}  // extern "C"

// Working memory of decoder layers, for all rows.
struct LayerRows {
    float *joined, *queries, *attended, *normalized, *inner;
    QuantizedRows rows;

    LayerRows(Scratch& scratch, long count, long size, long inner_size)
        : joined(scratch.take<float>(count * 3 * size)),
          queries(scratch.take<float>(count * size)),
          attended(scratch.take<float>(count * size)),
          normalized(scratch.take<float>(count * size)),
          inner(scratch.take<float>(count * inner_size)),
          rows(scratch, count, std::max(size, inner_size)) {}
};

// Computes a layer for (rows, D); `from` and `hidden` may be the same.
static void extend_layer(
    const Layer& layer, const Nodes& nodes, Tree tree, const CrossKeysValues& cross,
    const LayerRows& work, const float* from, float* hidden) {
    tree.joined = work.joined;
    auto product = [&](const Linear& linear, const Norm* norm, const float* input,
                       const float* residual, float* to) {
        multiply_normalized(
            linear, norm, input, nodes.rows(), work.normalized, work.rows, residual, to);
    };
    product(layer.queries_keys_values, &layer.self_norm, from, nullptr, work.joined);
    attend_tree(nodes, tree, work.attended);
    product(layer.self_output, nullptr, work.attended, from, hidden);
    product(layer.cross_queries, &layer.cross_norm, hidden, nullptr, work.queries);
    attend_cross(nodes, cross, work.queries, work.attended);
    product(layer.cross_output, nullptr, work.attended, hidden, hidden);
    product(layer.inner, &layer.feed_forward_norm, hidden, nullptr, work.inner);
    product(layer.outer, nullptr, work.inner, hidden, hidden);
}

// Computes layers of equal sizes one after the other. The slots of the first layer, in `call`, are
// followed by those of the others; `packed` has the cross-attention keys and values of each layer.
extern "C" void extend_layers(
    const Layer* layers, int64_t count, const Call* call, const char* const* packed,
    const float* from, float* hidden) {
    const Nodes& nodes = call->nodes;
    const long rows = nodes.rows(), size = nodes.width(), inner_size = layers->inner.outputs;
    static thread_local Scratch scratch;
    scratch.reset();
    const LayerRows work(scratch, rows, size, inner_size);
#pragma omp parallel num_threads(call->threads)
    {
        Tree tree = call->tree;
        CrossKeysValues cross = call->cross;
        for (long layer = 0; layer < count; ++layer) {
            cross.packed = packed[layer];
            extend_layer(layers[layer], nodes, tree, cross, work, layer ? hidden : from, hidden);
            tree.slots += nodes.utterances * tree.capacity * 2 * nodes.width();
        }
    }
}

#include "greedy_loop.h"

extern "C" {

// Begins to decode texts of all utterances; the arguments, except `call`, are used until the end.
GreedyLoop* begin_chains(
    const LoopModel* model, const LoopDrafts* drafts, const LoopRules* rules, LoopPlan* plan,
    const Call* call, LoopRow* rows) {
    return new GreedyLoop(*model, *drafts, *rules, plan, *call, rows);
}

// Returns the next utterance whose `gives_up` is needed, or -1 when all texts are complete.
int64_t run_chains(GreedyLoop* loop) { return loop->run(); }

void end_chains(GreedyLoop* loop) { delete loop; }

}  // extern "C"
