// The interface to the sweep library (toolchain/sweep_library.cpp). Sweeps know rules only by their
// descriptors. So the library is separate from the kernel, and two compiler processes build them at
// the same time.

// Vectorization is the only optimization of -O2 and -O3 that is kept. The others double the build
// time, and speed up only the loops of broadcast_reduce.h over few rows or columns. g++ 11 forgets
// -fno-trapping-math and -fno-math-errno at this line unless they are named, and then leaves loops
// of Adafactor and CAME without vectors.
#ifndef __clang__
#pragma GCC optimize( \
    "O1", "tree-vectorize", "vect-cost-model=dynamic", "no-trapping-math", "no-math-errno")
#endif
#include "optgen/runtime/fused_cpu/include/tensor_passes.h"

namespace optgen {

// Rule as sweeps see it at run time.
template <class C>
struct RuleDescriptor {
    // Runs a loop over rows of n elements. The rows begin `pitch` elements apart; `at` has the
    // address of each value.
    using Run = void (*)(
        const void* inputs, int step, i64 rows, i64 n, i64 pitch, const Pointer* at);
    using Draw = void (*)(const void* inputs, int step, i64 place, i64 n, C* to);

    int stream_count, value_count, number_count, step_count, column_reduction_count;
    const Step* steps;
    const int* axes; // [value]
    // The rule's `run`, indexed by EXPANDED (see loads_and_stores.h): for `lanes` elements at once, and
    // for the rest of a row one by one.
    i64 lanes;
    Run vector_loop[2], scalar_loop[2];
    u64 element_streams; // streams that have a number for every element
    i64 element_bytes;   // bytes of one of these numbers
    Draw draw;           // draws the random numbers of n places; null if the rule draws none
    const BlockCodes* codes; // formats of the streams' codes

    template <class R, class S, class Lanes, bool EXPANDED>
    static void call_rule(
        const void* inputs, int step, i64 rows, i64 n, i64 pitch, const Pointer* at) {
        R::template run<S, Lanes, EXPANDED>(
            step, *static_cast<const LoopInputs<R>*>(inputs), rows, n, pitch, at);
    }

    template <class R>
    static void call_draw(const void* inputs, int step, i64 place, i64 n, C* to) {
        R::draw(step, *static_cast<const LoopInputs<R>*>(inputs), place, n, to);
    }
    template <class R>
    static constexpr Draw draw_of() {
        if constexpr (has_draw<R>()) return call_draw<R>;
        else return nullptr;
    }

    i64 bytes_per_number(int v) const {
        return element_streams >> v & 1 ? element_bytes : i64(sizeof(C));
    }

    // Runs loop k over some rows of n elements: whole vectors first, then the rest one by one.
    NOINLINE void run(
        bool expanded, const void* inputs, int k, i64 rows, i64 n, const Pointer* at) const {
        const i64 rest = steps[k].axes == TENSOR ? n % lanes : 0, in_vectors = n - rest;
        if (in_vectors) vector_loop[expanded](inputs, k, rows, in_vectors, n, at);
        if (!rest) return;
        Pointer remaining[MAX_VALUES];
        for (int v = 0; v < value_count; ++v) {
            const bool varies = expanded || axes[v] == TENSOR || axes[v] == COLUMN;
            remaining[v] = at[v].plus(varies ? in_vectors * bytes_per_number(v) : 0);
        }
        scalar_loop[expanded](inputs, k, rows, rest, n, remaining);
    }
};

// Descriptor for tensors whose elements loops read as S. Elements of other dtypes are first
// converted in buffers to the compute dtype, which S is then.
template <class R, class S, class C = ComputeScalar<S>, class Vectors = ComputeType<S>>
constexpr RuleDescriptor<C> DESCRIPTOR{
    R::STREAMS, R::VALUES, R::NUMBERS, R::STEP_COUNT, R::COLUMN_REDUCTIONS, R::STEPS, R::AXES,
    LANES<Vectors>,
    {RuleDescriptor<C>::template call_rule<R, S, Vectors, false>,
     RuleDescriptor<C>::template call_rule<R, S, Vectors, R::HAS_AXES>},
    {RuleDescriptor<C>::template call_rule<R, S, C, false>,
     RuleDescriptor<C>::template call_rule<R, S, C, R::HAS_AXES>},
    element_streams<R>(), sizeof(S), RuleDescriptor<C>::template draw_of<R>(), R::CODES};

template <class R, class C>
const RuleDescriptor<C>& descriptor(const TensorPlan& plan) {
    if constexpr (sizeof(C) == 4 && IS_COMPILED<BFLOAT16>)
        if (plan.loop_dtype == BFLOAT16) return DESCRIPTOR<R, bfloat16>;
    if constexpr (sizeof(C) == 4 && IS_COMPILED<FLOAT16>)
        if (plan.loop_dtype == FLOAT16) return DESCRIPTOR<R, float16>;
    return DESCRIPTOR<R, C>;
}

// Footprint of a pass. Its sets of values have a bit for each value.
struct Footprint {
    u64 touched_values = 0; // values that the pass reads or writes
    u64 written_values = 0; // values that loops and draws write
    int loop_count = 0;
    bool has_maximum = false; // whether a reduction by a maximum reads elements after the loops
};

template <class R>
constexpr Footprint footprint(const Pass& pass) {
    Footprint result;
    for (int k = 0; k < R::STEP_COUNT; ++k) {
        if (!(pass.tile_steps >> k & 1)) continue;
        result.touched_values |= R::STEPS[k].read_values | R::STEPS[k].written_values;
        if (R::STEPS[k].kind == Step::MAX) result.has_maximum = true;
        if (R::STEPS[k].is_reduction()) continue;
        result.written_values |= R::STEPS[k].written_values;
        result.loop_count += R::STEPS[k].kind == Step::LOOP;
    }
    return result;
}

// Footprints of all passes of a rule, computed at compile time: a small tensor's whole step
// takes less time than computing them.
template <class R>
struct Footprints {
    Footprint of_pass[TensorPlan::STRATEGIES][MAX_PASSES];

    constexpr Footprints() : of_pass() {
        for (int strategy = 0; strategy < (R::HAS_AXES ? TensorPlan::STRATEGIES : 1); ++strategy)
            for (int pass = 0; pass < R::PASS_COUNTS[strategy]; ++pass)
                of_pass[strategy][pass] = footprint<R>(R::PASSES[strategy][pass]);
    }
};
template <class R>
constexpr Footprints<R> FOOTPRINTS;

// Tensor as sweeps see it at run time. The arrays are those of TensorPasses.
template <class C>
struct TensorContext {
    const Table& table;
    const TensorPlan& plan;
    const void* inputs; // the rule's LoopInputs
    double* partials;
    C* const* axis_values;
    double *row_sums, *column_sums;

    u32 dtype(int stream) const { return dtype_of(table.dtypes[plan.tensor], stream); }
    void* address(int stream) const {
        return table.address[stream * table.tensor_count + plan.tensor];
    }
};

// Functions for the compute dtype C.
template <class C>
struct SweepFunctions {
    // Returns how many elements of scratch memory a thread needs.
    i64 (*scratch_elements)(const RuleDescriptor<C>&, const TensorPlan&);
    void (*run)(
        const RuleDescriptor<C>&, const TensorContext<C>&, const Pass&, const Footprint&,
        bool is_first_pass, C* scratch, i64 block);
};

// Functions by compute dtype; null for a dtype that is not compiled.
struct SweepTable {
    const SweepFunctions<float>* in_float;
    const SweepFunctions<double>* in_double;

    const SweepFunctions<float>& of(float) const { return *in_float; }
    const SweepFunctions<double>& of(double) const { return *in_double; }
};

}  // namespace optgen
