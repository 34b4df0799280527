// Greedy search with chains as drafts and exact acceptance, from the prompts to the ends of texts.
//
// Rejected nodes of a chain have the last slots, so that the next nodes overwrite them.
#pragma once

#include <chrono>

#include "draft_chain.h"
#include "text_draft.h"
#include "top_tokens.h"

// Decoder and cache of the loop; LoopModelArguments in library.py.
struct LoopModel {
    const Layer* layers;
    int64_t num_layers;
    const Norm* norm;          // after the layers; or null
    const Linear* projection;  // to logits; its dequantized rows are the embeddings
    const float* positions;    // (positions, D)
    const char* const* packed;  // cross-attention keys and values of each layer
    float* slots;              // (layers, U, capacity, 2, D)
    int64_t capacity;
};

// Drafter of the loop; LoopDraftsArguments in library.py.
struct LoopDrafts {
    int64_t depth;        // most tokens of all drafts; 0: no drafts, the other members are unused
    int64_t heads_depth;  // most tokens of drafts by heads
    int64_t first_time, after_times;  // ids of timestamps that are not aligned with texts
    float least;                      // as in `draft_chain`
    const AttendingHeads* heads;      // or null: only texts draft
    const Linear* projection;
    const Shortlist* list;
    const int64_t* vocabulary;  // tokens of the projection's columns; or null
    const char* packed;         // cross-attention keys and values of the heads
};

// Depths of drafts and seconds of calls; LoopPlanArguments in library.py.
struct LoopPlan {
    const int64_t* depths;  // most tokens of a draft with 1, 2, ... running utterances
    int64_t trial, trial_calls;  // another depth, before so many calls after the first one
    // For each call after the first one: running utterances, most tokens of a draft, seconds.
    int64_t calls, *running, *used;
    double* seconds;
};

// Allowed tokens; LoopRulesArguments in library.py.
struct LoopRules {
    const uint8_t* blocked;  // (masks, V) by number of tokens before; the last mask for all later
    int64_t masks;           // 0: no blocked tokens
    int64_t eos, renormalize;
    int64_t first_time, after_times;  // ids of timestamps; equal without timestamp rules
    int64_t latest_first;             // largest id of the first token; -1: no limit

    bool has_times() const { return first_time < after_times; }
};

// An utterance of the loop; LoopRowArguments in library.py.
struct LoopRow {
    const int64_t* prompt;
    int64_t prompt_length, max_length, min_length;
    int64_t asks;          // whether it asks every GIVE_UP_STEPS tokens if it gives up
    int64_t gives_up;      // the answer
    int64_t probed;        // index of a prompt token, or -1
    const int64_t* text;  // drafts while the decoded text follows it
    int64_t text_length;  // -1: there is none
    float* probed_hidden;  // (D) receives the hidden state of that token
    int64_t* tokens;       // (max_length) receives the text, with the end symbol
    float* log_probs;      // (max_length) receives their log-probabilities
    int64_t written, calls, nodes;
    int64_t *drafted, *accepted;  // (depth) drafts with 1, 2, ... drafted or accepted steps
    double seconds, draft_seconds;
};

constexpr long GIVE_UP_STEPS = 16;  // as in search/state.py

// Limits of the timestamp rules after a text; ``TimestampRules._limits`` in timestamps.py.
inline ColumnGroups time_limits(const LoopRules& rules, const int64_t* tokens, long count) {
    auto timed = [&](long place) {
        return tokens[place] >= rules.first_time && tokens[place] < rules.after_times;
    };
    const bool begins = count == 0, last = !begins && timed(count - 1);
    const bool paired = count < 2 || timed(count - 2), closes = last && !paired;
    long at = count - 1;
    while (at >= 0 && !timed(at)) --at;
    const int64_t latest = at < 0 ? rules.first_time - 1 : tokens[at];
    ColumnGroups limits{closes, begins, std::max(latest + !closes, rules.first_time),
                        rules.after_times};
    limits.least = std::min(limits.least, rules.after_times);
    if (begins && rules.latest_first >= 0)
        limits.end = std::clamp(rules.latest_first + 1, rules.first_time, rules.after_times);
    if (last && paired) limits.end = limits.least;
    return limits;
}

class GreedyLoop {
  public:
    GreedyLoop(const LoopModel& model, const LoopDrafts& drafts, const LoopRules& rules,
               LoopPlan* plan, const Call& call, LoopRow* rows)
        : model(model), drafts(drafts), rules(rules), plan(plan), call(call), rows(rows),
          utterances(call.nodes.utterances), size(call.nodes.width()), turn(utterances),
          states(utterances), first_row(utterances + 1), known(utterances) {
        const long width = 1 + drafts.depth;
        long nodes = 0;
        for (long row = 0; row < utterances; ++row) nodes += rows[row].prompt_length + width;
        embedded = scratch.take<float>(nodes * size);
        hidden = scratch.take<float>(nodes * size);
        queried = scratch.take<float>(utterances * width * size);
        logits = scratch.take<float>(utterances * width * model.projection->outputs);
        chains = scratch.take<int64_t>(utterances * std::max<long>(drafts.depth, 1));
        for (long row = 0; row < utterances; ++row) {
            const LoopRow& of = rows[row];
            states[row].nodes.assign(of.prompt, of.prompt + of.prompt_length);
            if (of.text_length >= 0)
                states[row].text = TextDraft(of.text, of.text_length, drafts.first_time,
                                             drafts.after_times, rules.eos);
        }
    }

    // Decodes on; returns an utterance that asks, or -1 when all are done.
    long run() {
        while (turn < utterances || running() > 0) {
            if (turn == utterances) {
                begin_call();
                timed(&LoopRow::draft_seconds, [&] { draft(); });
                timed(nullptr, [&] { evaluate(); });
                ++calls;
                turn = 0;
            }
            for (; turn < utterances; ++turn)
                if ((states[turn].running || states[turn].asked) && !accept(turn)) return turn;
            end_call();
        }
        return -1;
    }

  private:
    // An utterance's nodes of the next call: its last token, or the prompt, and then the draft.
    struct State {
        bool running = true;
        std::vector<int64_t> nodes;
        long given = 0;    // nodes before the first one whose next token is needed
        long drafted = 0;  // steps of the draft, with one that needs no node
        long known = 0;    // slots of the text so far, without these nodes
        long tip = 0;      // row in `hidden` of the last accepted node
        long place = 0;    // of the first node whose next token is needed, among all of them
        long node = 0;     // the last accepted one
        long steps = 0;    // tokens that this call has written
        bool follows = true;  // whether the next best token is known
        bool asked = false;   // whether the answer to its question decides if it goes on
        TextDraft text;       // unused without a text
        long aligned = 0;     // tokens of the decoded text that it knows
    };

    long running() const {
        long count = 0;
        for (const State& state : states) count += state.running;
        return count;
    }

    // Chooses the depth of the drafts for the next call.
    void begin_call() {
        started = std::chrono::steady_clock::now();
        before = running();
        depth = drafts.depth;
        if (plan) depth = calls <= plan->trial_calls ? plan->trial : plan->depths[before - 1];
    }

    // Records the call in the plan; the first one has the prompt.
    void end_call() {
        if (!plan || calls == 1) return;
        const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - started;
        plan->running[plan->calls] = before;
        plan->used[plan->calls] = depth;
        plan->seconds[plan->calls++] = passed.count();
    }

    // Divides the seconds of an action among the running utterances; `also`: a second total.
    template <class Action>
    void timed(double LoopRow::*also, Action action) {
        const auto started = std::chrono::steady_clock::now();
        action();
        const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - started;
        const double share = passed.count() / running();
        for (long row = 0; row < utterances; ++row) {
            if (!states[row].running) continue;
            rows[row].seconds += share;
            if (also) rows[row].*also += share;
        }
    }

    // Computes hidden states of all nodes, and logits of those whose next token is needed.
    void evaluate() {
        long count = 0;
        for (long row = 0; row < utterances; ++row) {
            State& state = states[row];
            first_row[row] = count;
            known[row] = state.known;
            if (!state.running) continue;
            for (size_t node = 0; node < state.nodes.size(); ++node, ++count) {
                float* to = embedded + count * size;
                unpack_output(*model.projection, state.nodes[node], to);
                const float* position = model.positions + (state.known + node) * size;
                for (long at = 0; at < size; ++at) to[at] += position[at];
            }
            rows[row].calls += 1;
            rows[row].nodes += state.nodes.size();
            state.given = state.known == 0 ? rows[row].prompt_length - 1 : 0;
        }
        first_row[utterances] = count;
        call.nodes.first_row = first_row.data();
        call.tree = {nullptr, model.slots, model.capacity, known.data(), nullptr, 0};
        extend_layers(model.layers, model.num_layers, &call, model.packed, embedded, hidden);
        if (model.norm) normalize_rows(model.norm, hidden, count, size, hidden);
        long needed = 0;
        for (long row = 0; row < utterances; ++row) {
            State& state = states[row];
            if (!state.running) continue;
            const long first = first_row[row] + state.given, end = first_row[row + 1];
            state.place = needed;
            std::copy(hidden + first * size, hidden + end * size, queried + needed * size);
            needed += end - first;
            if (state.known == 0 && rows[row].probed >= 0)
                std::copy_n(hidden + (first_row[row] + rows[row].probed) * size, size,
                            rows[row].probed_hidden);
        }
        linear(model.projection, queried, needed, nullptr, logits, call.threads);
        find_best(needed);
    }

    // Finds the best token after each node of the call whose next token is needed.
    void find_best(long needed) {
        const long width = model.projection->outputs;
        best.resize(needed);
        best_log_probs.resize(needed);
        masks.resize(needed);
        ends.resize(needed);
        groups.resize(needed);
        bool limited = false;
        for (long row = 0, place = 0; row < utterances; ++row) {
            const State& state = states[row];
            if (!state.running) continue;
            limited |= rows[row].min_length > 0;
            std::vector<int64_t> text(rows[row].tokens, rows[row].tokens + rows[row].written);
            for (size_t node = state.given; node < state.nodes.size(); ++node, ++place) {
                if (long(node) > state.given) text.push_back(state.nodes[node]);
                const long length = text.size();
                masks[place] = std::clamp<long>(length, 0, std::max<long>(rules.masks - 1, 0));
                ends[place] = logits[place * width + rules.eos];
                const bool forbidden =
                    rules.masks > 0 && rules.blocked[masks[place] * width + rules.eos];
                if (forbidden || length < rows[row].min_length) ends[place] = -INFINITY;
                if (rules.has_times()) groups[place] = time_limits(rules, text.data(), length);
            }
        }
        const Restriction restriction{
            rules.masks > 0 ? rules.blocked : nullptr, masks.data(), rules.eos,
            limited ? ends.data() : nullptr, rules.has_times() ? groups.data() : nullptr,
            rules.first_time, rules.renormalize};
        if (rules.renormalize)
            return top_tokens(logits, needed, width, &restriction, 1, best.data(),
                              best_log_probs.data(), call.threads);
        normalizers.resize(needed);
        best_tokens(logits, needed, width, &restriction, best.data(), normalizers.data(),
                    best_log_probs.data(), call.threads);
    }

    // Appends the drafts that are the best tokens, and the best token after them. Returns false if
    // the utterance asks first, and goes on when it is called again.
    bool accept(long row) {
        State& state = states[row];
        LoopRow& of = rows[row];
        if (state.asked) {
            state.running &= !of.gives_up;
            state.asked = false;
        } else {
            state.node = state.given;
            state.steps = 0;
            state.follows = true;
        }
        const long nodes = state.nodes.size();
        while (state.follows && state.running) {
            const int64_t token = best[state.place + state.steps];
            of.tokens[of.written] = token;
            of.log_probs[of.written++] = best_log_probs[state.place + state.steps++];
            state.follows = state.node + 1 < nodes && state.nodes[state.node + 1] == token;
            state.node += state.follows;
            state.running = token != rules.eos && of.written < of.max_length;
            state.asked = of.asks && token != rules.eos && of.written % GIVE_UP_STEPS == 0;
            if (state.asked) return false;
        }
        for (long step = 0; step < state.drafted; ++step) {
            of.drafted[step] += 1;
            of.accepted[step] += step < state.steps - 1;
        }
        state.known += state.node + 1;
        state.tip = first_row[row] + state.node;
        return true;
    }

    // Sets the nodes of the next call: each utterance's text drafts, or the heads.
    void draft() {
        long most = 0, count = 0;
        for (long row = 0; row < utterances; ++row)
            if (states[row].running)
                most = std::max<long>(most, rows[row].max_length - rows[row].written);
        most = std::min<long>(most, depth);
        for (long row = 0; row < utterances; ++row) {
            State& state = states[row];
            first_row[row] = count;
            if (!state.running) continue;
            if (calls > 0) state.nodes.assign(1, rows[row].tokens[rows[row].written - 1]);
            state.drafted = 0;
            if (most == 0 || draft_text(row, most) || calls == 0 || !drafts.heads) continue;
            std::copy_n(hidden + state.tip * size, size, queried + count * size);
            unpack_output(*model.projection, state.nodes[0], embedded + count++ * size);
        }
        first_row[utterances] = count;
        most = std::min<long>(most, drafts.heads_depth);
        if (count == 0 || most == 0) return;
        const Chain chain{call.nodes, {drafts.packed, call.cross.frames, call.cross.mask}, most,
                          call.threads};
        draft_chain(drafts.heads, drafts.projection, drafts.list, &chain, queried, embedded,
                    drafts.least, drafts.vocabulary, chains);
        for (long row = 0; row < utterances; ++row)
            if (first_row[row] < first_row[row + 1])
                follow(row, chains + first_row[row] * most, most);
    }

    // Lets an utterance's text draft; returns false without one, or if the heads draft instead.
    bool draft_text(long row, long most) {
        State& state = states[row];
        const LoopRow& of = rows[row];
        if (of.text_length < 0) return false;
        for (; state.aligned < of.written; ++state.aligned)
            state.text.append(of.tokens[state.aligned]);
        if (drafts.heads && calls > 0 && !state.text.matched()) return false;
        state.text.draft(chains, most);
        follow(row, chains, most);
        return true;
    }

    // Adds a chain to the nodes, up to its end, an end symbol or the maximum length.
    void follow(long row, const int64_t* chain, long depth) {
        State& state = states[row];
        for (long step = 0; step < depth && chain[step] != MISSING; ++step) {
            state.drafted += 1;
            if (chain[step] == rules.eos || rows[row].written + step + 1 >= rows[row].max_length)
                break;
            state.nodes.push_back(chain[step]);
        }
    }

    const LoopModel& model;
    const LoopDrafts& drafts;
    const LoopRules& rules;
    LoopPlan* plan;  // or null: always the most drafts
    Call call;
    LoopRow* rows;
    long utterances, size;
    long turn;       // the next utterance whose tokens are accepted
    long calls = 0;  // decoder calls so far
    long depth = 0, before = 0;  // of the last call: most tokens of a draft, running utterances
    std::chrono::steady_clock::time_point started;  // of the last call
    std::vector<State> states;
    std::vector<int32_t> first_row, known;
    std::vector<int64_t> best, masks;
    std::vector<float> best_log_probs, normalizers, ends;
    std::vector<ColumnGroups> groups;
    Scratch scratch;
    float *embedded, *hidden, *queried, *logits;
    int64_t* chains;
};
