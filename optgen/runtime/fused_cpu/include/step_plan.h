// The plans of all tensors of a step, and the step on one thread.
#include "optgen/runtime/fused_cpu/include/sweep_interface.h"
#include "optgen/runtime/fused_cpu/include/workspace.h"

extern "C" {
// The runtime stores the address of the sweep library's `optgen_sweeps` here (sweep_library.py).
const optgen::SweepTable* optgen_sweep_library;
}

namespace optgen {

// Operations on tensors of one rule, in one compute dtype.
template <class R, class C>
struct TensorMethodsOf {
    static TensorPasses<R, C> passes_of(const TensorPlan& plan) {
        return TensorPasses<R, C>(*static_cast<const Program<R>*>(plan.program), plan);
    }
    // Only computes sizes, so plan.memory need not be set.
    static i64 tensor_bytes(const TensorPlan& plan) { return passes_of(plan).bytes; }
    static i64 scratch_bytes(const TensorPlan& plan) {
        const SweepFunctions<C>& sweeps = optgen_sweep_library->of(C());
        return sweeps.scratch_elements(descriptor<R, C>(plan), plan) * i64(sizeof(C));
    }
    static void begin(const TensorPlan& plan) { passes_of(plan).begin(); }
    static void finish(const TensorPlan& plan, int pass) {
        const TensorPasses<R, C> passes = passes_of(plan);
        passes.finish(passes.pass_list()[pass]);
    }
    static void sweep(const TensorPlan& plan, int pass, i64 block, char* scratch) {
        const TensorPasses<R, C> passes = passes_of(plan);
        const LoopInputs<R> inputs = passes.inputs(block);
        const TensorContext<C> context{
            passes.program.table, plan, &inputs, inputs.partials,
            passes.axis_values, passes.row_sums, passes.column_sums};
        const Footprint& footprint = FOOTPRINTS<R>.of_pass[plan.strategy][pass];
        optgen_sweep_library->of(C()).run(
            descriptor<R, C>(plan), context, passes.pass_list()[pass], footprint, pass == 0,
            reinterpret_cast<C*>(scratch), block);
    }
    static constexpr TensorMethods METHODS{tensor_bytes, scratch_bytes, begin, sweep, finish};
};

// Plans the tensor if the program applies to it. Returns whether the program applies.
template <class R>
bool plan_tensor(const Program<R>& program, i64 t, TensorPlan& plan) {
    if (program.run_index[t] < 0) return false;
    plan = make_plan(program, t);
    plan.program = &program;
    plan.methods = with_compute_type(plan.in_double, [](auto number) {
        return &TensorMethodsOf<R, decltype(number)>::METHODS;
    });
    plan.pass_count = R::PASS_COUNTS[plan.strategy];
    return true;
}

// Plans of all tensors of a step.
struct StepPlan {
    HeapArray<TensorPlan> plans;
    i64 plan_count = 0;
    i64 tensor_bytes = 0;  // memory of the tensor that needs most; its blocks share this memory
    i64 scratch_bytes = 0; // memory of one thread, at the tensor that needs most
    i64 traffic = 0; // bytes of all states, parameters and gradients. A state of another shape
                     // counts as if it had its parameter's shape.

    template <class... R>
    explicit StepPlan(const Table& table, const Program<R>&... programs)
        : plans(table.tensor_count + 1) {
        i64 tensor_traffic = 0;
        for (i64 t = 0; t < table.tensor_count; ++t) {
            TensorPlan& plan = plans[plan_count];
            if (plan_count && are_alike(table, t, plans[plan_count - 1].tensor)) {
                plan = plans[plan_count - 1];
                plan.tensor = t;
            } else {
                // Each program is for certain shapes. No program applies to a tensor without
                // gradient.
                if (!(plan_tensor(programs, t, plan) || ...)) continue;
                tensor_bytes = max(tensor_bytes, plan.methods->tensor_bytes(plan));
                scratch_bytes = max(scratch_bytes, plan.methods->scratch_bytes(plan));
                tensor_traffic = 0;
                for (u64 dtypes = table.dtypes[t]; dtypes; dtypes >>= 4)
                    tensor_traffic += table.elements[t] * itemsize(dtypes & 15);
            }
            traffic += tensor_traffic;
            ++plan_count;
        }
        for (i64 i = 0; i < plan_count; ++i) plans[i].step_exceeds_cache = traffic > CACHE_BYTES;
    }

    // Tells whether the plan of tensor `other` is valid for tensor t, too.
    static bool are_alike(const Table& table, i64 t, i64 other) {
        if (table.dtypes[t] != table.dtypes[other] || table.elements[t] != table.elements[other])
            return false;
        const i64* const shape = table.shape + SHAPE_SIZE * t;
        const i64* const other_shape = table.shape + SHAPE_SIZE * other;
        for (int i = 0; i < SHAPE_SIZE; ++i)
            if (shape[i] != other_shape[i]) return false;
        return !table.shards;
    }

    // Runs all passes of one tensor on one thread.
    static void run_tensor(TensorPlan& plan, char* memory, char* scratch) {
        plan.memory = memory;
        plan.methods->begin(plan);
        for (int pass = 0; pass < plan.pass_count; ++pass) {
            for (i64 block = 0; block < plan.block_count; ++block)
                plan.methods->sweep(plan, pass, block, scratch);
            plan.methods->finish(plan, pass);
        }
    }

    // Takes the step on this thread alone.
    void run_serial() const {
        const Workspace workspace(tensor_bytes + scratch_bytes);
        for (i64 i = 0; i < plan_count; ++i)
            run_tensor(plans[i], workspace.at, workspace.at + tensor_bytes);
    }
};

}  // namespace optgen
