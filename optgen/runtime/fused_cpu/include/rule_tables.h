// The tables that describe a rule with phases: its steps, and the passes that run steps together.
// A step is a loop over elements, rows, columns or matrices, a reduction, or a draw of random
// numbers. A pass runs some steps on every tile of a tensor, and other steps once, after all tiles.
#include "optgen/runtime/fused_cpu/include/broadcast_reduce.h"

namespace optgen {

// Calls `make` with a number of the compute dtype: double if a stream is double, else float.
template <class Make>
auto with_compute_type(bool in_double, Make make) {
    if constexpr (!IS_COMPILED<FLOAT32>) return make(double());
    else if constexpr (!IS_COMPILED<FLOAT64>) return make(float());
    else return in_double ? make(double()) : make(float());
}

struct Step {
    // The kinds from GROUP_SUM on reduce one number of each tensor over tensors of the step, in
    // place. In `numbers`, the next number is 1 if the tensor takes part in the reduction, else 0.
    enum Kind { LOOP, DRAW, SUM, MAX, GROUP_SUM, GROUP_MAX, ALL_SUM, ALL_MAX } kind;
    int axes;          // of a loop's values, or of a reduction's result
    u64 read_values, written_values; // a bit each
    int result_index;  // of a reduction: among the numbers, or among the reductions to its axes

    constexpr bool is_reduction() const { return kind >= SUM; }
    constexpr bool is_wide() const { return kind >= GROUP_SUM; }
};

// Sets of values are 64-bit integers.
constexpr int MAX_VALUES = 64;
constexpr int MAX_PASSES = 16;

template <class... Members>
constexpr u64 set(Members... members) {
    return (u64(0) | ... | (u64(1) << members));
}

// Returns the only member of a set of values.
constexpr int only_value(u64 values) { return __builtin_ctzll(values); }

struct Pass {
    u64 tile_steps;    // steps that run on every tile, a bit each
    u64 finish_steps;  // steps that run once, after all tiles
    u64 stored_values; // values that the pass stores in streams
};

// Returns the streams that have a number for every element, a bit each.
template <class R>
constexpr u64 element_streams() {
    u64 streams = 0;
    for (int v = 0; v < R::STREAMS; ++v) streams |= u64(R::AXES[v] == TENSOR) << v;
    return streams;
}

// Index of a number of the whole tensor, and of the cell of the scalar state that takes its value.
struct StoredNumber {
    int number_index, cell_index;
};

// Tells whether a rule has a list STORED_NUMBERS.
template <class R, class = void>
constexpr bool STORES_NUMBERS = false;
template <class R>
constexpr bool STORES_NUMBERS<R, decltype(void(R::STORED_NUMBERS))> = true;

// Tells whether a rule draws random numbers.
template <class R>
constexpr bool has_draw() {
    for (const Step& step : R::STEPS)
        if (step.kind == Step::DRAW) return true;
    return false;
}

// Tells whether a rule reduces by a maximum; if no rule does, no code for maxima is compiled.
template <class R>
constexpr bool has_max() {
    for (const Step& step : R::STEPS)
        if (step.kind == Step::MAX) return true;
    return false;
}

}  // namespace optgen
