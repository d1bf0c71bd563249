// A rule as a table, so that one copy of a sweep's code serves all rules of a source.
#include "optgen/runtime/fused_cpu/phases.h"

namespace optgen {

// A rule as sweeps see it. They are told at run time: all rules of a source share one copy of them.
template <class C>
struct Outline {
    using Run = void (*)(const void* given, int step, i64 rows, i64 n, C* const* at);

    int streams, values, numbers, step_count, column_reductions;
    const Step* steps;
    const int* axes;
    Run run, run_spread; // a loop, see the rule's `run`
    u64 elements;        // the streams that have a number for every element

    template <class R, bool SPREAD>
    static void run_of(const void* given, int step, i64 rows, i64 n, C* const* at) {
        R::template run<C, SPREAD>(step, *static_cast<const Given<R>*>(given), rows, n, at);
    }
};

template <class R, class C>
constexpr Outline<C> OUTLINE{
    R::STREAMS, R::VALUES, R::NUMBERS, R::STEP_COUNT, R::COLUMN_REDUCTIONS, R::STEPS, R::AXES,
    Outline<C>::template run_of<R, false>,
    Outline<C>::template run_of<R, R::HAS_AXES>, streams_of_elements<R>()};

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
