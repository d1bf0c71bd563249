// A step on several threads: all threads share the large tensors; each other tensor goes to one
// thread. The step is one parallel region, with a barrier after each pass over a batch of shared
// tensors.
#include "optgen/runtime/fused_cpu/include/step_plan.h"

namespace optgen {

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

}  // namespace optgen
