// Which rows are whose.
#pragma once

#include <cstdint>

// New nodes of U utterances, one utterance's rows behind the other's.
struct Nodes {
    int64_t utterances, heads, head_size;
    const int32_t* first_row;  // (U + 1)

    long rows() const { return first_row[utterances]; }
    long width() const { return heads * head_size; }
};
