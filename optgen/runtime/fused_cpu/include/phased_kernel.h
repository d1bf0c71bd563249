// Entry header of fused C++ kernels for rules with phases: runs all tensors of a table through the
// passes of their rules. Begin with the overview in elementwise_kernel.h.
#include "optgen/runtime/fused_cpu/include/random_numbers.h"
#include "optgen/runtime/fused_cpu/include/sweep_interface.h"

extern "C" {
// The runtime stores the address of the sweep library's `optgen_sweeps` here (dtype_variants.py).
const optgen::SweepTable* optgen_sweep_library;
}

namespace optgen {

// Memory kept from the last step, or null. It is as large as the largest step so far needed.
static char* kept_memory = nullptr;

class Workspace {
    struct Head {
        void* allocated;
        i64 bytes;
    };
    static Head& head(char* at) { return reinterpret_cast<Head*>(at)[-1]; }

public:
    char* at;

    explicit Workspace(i64 bytes)
        : at(__atomic_exchange_n(&kept_memory, nullptr, __ATOMIC_ACQ_REL)) {
        if (at && head(at).bytes >= bytes) return;
        if (at) __builtin_free(head(at).allocated);
        // 128 bytes have room for the head and for alignment to a cache line.
        char* const allocated = static_cast<char*>(__builtin_malloc(u64(bytes) + 128));
        if (!allocated) __builtin_trap();
        at = allocated + 128 - reinterpret_cast<u64>(allocated) % 64;
        head(at) = {allocated, bytes};
    }
    Workspace(const Workspace&) = delete;
    ~Workspace() {  // a concurrent step may have returned its memory first
        char* const other = __atomic_exchange_n(&kept_memory, at, __ATOMIC_ACQ_REL);
        if (other) __builtin_free(head(other).allocated);
    }
};

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

// A tensor with fewer elements goes to one thread.
constexpr i64 MIN_SHARED_ELEMENTS = 1 << 18;
// Memory limit of shared tensors that are swept together. If all together need more memory, they
// are swept in several batches, one after the other.
constexpr i64 BATCH_BYTES = 8 << 20;

// Shared tensors whose memory exists at the same time. Threads claim their blocks, pass by pass.
struct SharedBatch {
    i64 first, end; // indices of shared tensors
    i64 block_count, bytes;
    int pass_count;
};

struct ParallelStep {
    const StepPlan& step_plan;
    const Threads& threads;
    HeapArray<TensorPlan*> shared_plans, unshared_plans;
    i64 shared_count = 0, unshared_count = 0;
    HeapArray<SharedBatch> batches;
    i64 batch_count = 0;
    i64 counter_count = 1;
    i64 bytes = 0; // memory of the batch that needs most
    // Indices of the next work to claim: of an unshared tensor, then of a block for each pass.
    i64* counters = nullptr;
    char* memory = nullptr;

    ParallelStep(const StepPlan& given_plan, const Threads& given_threads)
        : step_plan(given_plan), threads(given_threads), shared_plans(step_plan.plan_count + 1),
          unshared_plans(step_plan.plan_count + 1), batches(step_plan.plan_count + 1) {
        for (i64 i = 0; i < step_plan.plan_count; ++i) {
            TensorPlan& plan = step_plan.plans[i];
            if (plan.extent().elements >= MIN_SHARED_ELEMENTS && plan.block_count > 1)
                add_shared(plan);
            else unshared_plans[unshared_count++] = &plan;
        }
        for (i64 i = 0; i < batch_count; ++i) counter_count += batches[i].pass_count;
    }

    void add_shared(TensorPlan& plan) {
        const i64 needed = plan.methods->tensor_bytes(plan);
        if (!batch_count || batches[batch_count - 1].bytes + needed > BATCH_BYTES)
            batches[batch_count++] = {shared_count, shared_count, 0, 0, 0};
        SharedBatch& batch = batches[batch_count - 1];
        plan.first_block = batch.block_count;
        plan.memory_offset = batch.bytes;
        plan.blocks_left = plan.block_count;
        batch.block_count += plan.block_count;
        batch.bytes += needed;
        batch.pass_count = int(max(batch.pass_count, plan.pass_count));
        batch.end = shared_count + 1;
        shared_plans[shared_count++] = &plan;
        bytes = max(bytes, batch.bytes);
    }

    i64 thread_bytes() const { return step_plan.tensor_bytes + step_plan.scratch_bytes; }

    void run() {
        const i64 counter_bytes = rounded_up(counter_count * i64(sizeof(i64)), 64);
        const Workspace workspace(counter_bytes + bytes + threads.count * thread_bytes());
        counters = reinterpret_cast<i64*>(workspace.at);
        memory = workspace.at + counter_bytes;
        for (i64 i = 0; i < counter_count; ++i) counters[i] = 0;
        begin_batch(/*batch_index=*/0);
        threads.parallel(enter, this, unsigned(threads.count), 0);
    }

    static void enter(void* region) { static_cast<ParallelStep*>(region)->run_thread(); }

    void run_thread() {
        const int id = threads.id();
        char* const thread_memory = memory + bytes + id * thread_bytes();
        i64* counter = counters + 1;
        for (i64 batch_index = 0; batch_index < batch_count; ++batch_index)
            for (int pass = 0; pass < batches[batch_index].pass_count; ++pass, ++counter) {
                const SharedBatch& batch = batches[batch_index];
                for (i64 block; (block = claim(counter)) < batch.block_count;)
                    sweep_block(batch, pass, block, thread_memory + step_plan.tensor_bytes);
                if (counter == counters + 1) run_unshared(thread_memory); // in the first pass only
                threads.barrier();
                if (pass + 1 == batch.pass_count && batch_index + 1 < batch_count) {
                    if (id == 0) begin_batch(batch_index + 1);
                    threads.barrier();
                }
            }
        if (!batch_count) run_unshared(thread_memory);
    }

    static i64 claim(i64* counter) { return __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED); }

    void run_unshared(char* thread_memory) {
        for (i64 i; (i = claim(counters)) < unshared_count;)
            StepPlan::run_tensor(
                *unshared_plans[i], thread_memory, thread_memory + step_plan.tensor_bytes);
    }

    void begin_batch(i64 batch_index) {
        if (batch_index >= batch_count) return;
        for (i64 i = batches[batch_index].first; i < batches[batch_index].end; ++i) {
            shared_plans[i]->memory = memory + shared_plans[i]->memory_offset;
            shared_plans[i]->methods->begin(*shared_plans[i]);
        }
    }

    // Sweeps a block. The thread that sweeps a tensor's last block also runs the finish steps.
    void sweep_block(const SharedBatch& batch, int pass, i64 block, char* scratch) {
        i64 i = batch.first;
        while (i + 1 < batch.end && shared_plans[i + 1]->first_block <= block) ++i;
        TensorPlan& plan = *shared_plans[i];
        if (pass >= plan.pass_count) return;
        plan.methods->sweep(plan, pass, block - plan.first_block, scratch);
        if (__atomic_sub_fetch(&plan.blocks_left, 1, __ATOMIC_ACQ_REL)) return;
        plan.methods->finish(plan, pass);
        plan.blocks_left = plan.block_count;
    }
};

#ifndef OPTGEN_SUSPENDS
// Takes one step of all tensors of the table.
template <class... R>
void run(const Table& table, const Threads& threads, const Program<R>&... programs) {
    const StepPlan step_plan(table, programs...);
    if (threads.count > 1 && step_plan.traffic > MIN_PARALLEL_BYTES)
        ParallelStep(step_plan, threads).run();
    else step_plan.run_serial();
}

template <class... R>
void step(const Table& table, const Threads& threads) {
    run(table, threads, Program<R>(table)...);
}
#endif

}  // namespace optgen

#ifdef OPTGEN_SUSPENDS  // a separate library, for tensors that wait for ranks or for one another
#include "optgen/runtime/fused_cpu/include/suspending_kernel.h"
#endif
