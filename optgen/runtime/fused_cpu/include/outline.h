// A rule as a table, so that one copy of a sweep's code serves all rules of a source.
#include "optgen/runtime/fused_cpu/include/phases.h"

namespace optgen {

// A rule as sweeps see it. They are told at run time: all rules of a source share one copy of them.
template <class C>
struct Outline {
    using Run = void (*)(
        const void* given, int step, i64 rows, i64 n, i64 pitch, const Place* at);

    int streams, values, numbers, step_count, column_reductions;
    const Step* steps;
    const int* axes;
    // A loop over rows, or one over all (`spread`), see the rule's `run`: by so many numbers at
    // once, and by one for what these leave of a row.
    i64 lanes;
    Run several[2], one[2];
    u64 elements; // the streams that have a number for every element
    i64 stored;   // the bytes of one of these

    template <class R, class S, class Lanes, bool SPREAD>
    static void run_of(
        const void* given, int step, i64 rows, i64 n, i64 pitch, const Place* at) {
        R::template run<S, Lanes, SPREAD>(
            step, *static_cast<const Given<R>*>(given), rows, n, pitch, at);
    }

    i64 bytes(int v) const { return elements >> v & 1 ? stored : i64(sizeof(C)); }

    APART void run(
        bool spread, const void* given, int k, i64 rows, i64 n, const Place* at) const {
        const i64 rest = steps[k].axes == TENSOR ? n % lanes : 0, whole = n - rest;
        if (whole) several[spread](given, k, rows, whole, n, at);
        if (!rest) return;
        Place left[MOST_VALUES];
        for (int v = 0; v < values; ++v) {
            const bool walks = spread || axes[v] == TENSOR || axes[v] == COLUMN;
            left[v] = at[v].moved(walks ? whole * bytes(v) : 0);
        }
        one[spread](given, k, rows, rest, n, left);
    }
};

// Of tensors whose elements are stored as S, or come through buffers of the type computed in.
template <class R, class S, class C = Number<S>, class Several = Computed<S>>
constexpr Outline<C> OUTLINE{
    R::STREAMS, R::VALUES, R::NUMBERS, R::STEP_COUNT, R::COLUMN_REDUCTIONS, R::STEPS, R::AXES,
    LANES<Several>,
    {Outline<C>::template run_of<R, S, Several, false>,
     Outline<C>::template run_of<R, S, Several, R::HAS_AXES>},
    {Outline<C>::template run_of<R, S, C, false>,
     Outline<C>::template run_of<R, S, C, R::HAS_AXES>},
    streams_of_elements<R>(), sizeof(S)};

template <class R, class C>
const Outline<C>& outline(const Job& job) {
    if constexpr (sizeof(C) == 4 && (KNOWN >> BFLOAT16 & 1))
        if (job.stored == BFLOAT16) return OUTLINE<R, bfloat16>;
    if constexpr (sizeof(C) == 4 && (KNOWN >> FLOAT16 & 1))
        if (job.stored == FLOAT16) return OUTLINE<R, float16>;
    return OUTLINE<R, C>;
}

// The values that a pass reads or writes, those it writes, how many loops it has, and whether these
// alone look at elements.
struct Reach {
    u64 touched = 0, written = 0;
    int loops = 0;
    bool plain = true;
};

template <class R>
constexpr Reach reach(const Pass& pass) {
    Reach found;
    for (int k = 0; k < R::STEP_COUNT; ++k) {
        if (!(pass.steps >> k & 1)) continue;
        found.touched |= R::STEPS[k].reads | R::STEPS[k].writes;
        if (R::STEPS[k].kind == Step::LARGEST) found.plain = false;
        if (R::STEPS[k].kind != Step::LOOP) continue;
        found.written |= R::STEPS[k].writes;
        ++found.loops;
    }
    return found;
}

// Of all passes of a rule: small tensors are done before this could be found out for each.
template <class R>
struct Reaches {
    Reach of[Job::WAYS][MOST_PASSES];

    constexpr Reaches() : of() {
        for (int way = 0; way < (R::HAS_AXES ? Job::WAYS : 1); ++way)
            for (int pass = 0; pass < R::PASSES[way]; ++pass)
                of[way][pass] = reach<R>(R::WAYS[way][pass]);
    }
};
template <class R>
constexpr Reaches<R> REACHES;

// And a tensor with its memory.
template <class C>
struct Subject {
    const Table& table;
    const Job& job;
    const void* given; // what the rule's loops are given
    double* partials;
    C* const* whole;
    double *row_sums, *column_sums;

    u32 type(int stream) const { return type_of(table.types[job.tensor], stream); }
    void* address(int stream) const { return table.address[stream * table.tensors + job.tensor]; }
};

}  // namespace optgen
