// The interface to the runtime: the table of tensors, their shards, and the thread pool.
#include "optgen/runtime/fused_cpu/include/dtypes.h"

namespace optgen {

// Tensor of which this rank holds a shard. The first three fields are sizes of the whole tensor.
// `sharded_axes` are bits: 1 matrices, 2 rows, 4 columns. For each set of axes, `rank_groups` has
// the runtime's index of the group of ranks that complete a sum over these axes; -1 if this rank's
// sum is complete.
struct Shard {
    i64 elements, rows, columns, sharded_axes, rank_groups[8];
};

// Step that the runtime resumes until it ends (suspending_kernel.h), and what it waits for.
struct SuspendingStep;
struct Shards {
    const Shard* by_tensor; // null if every tensor is whole, and the table has all of them
    i64 rank_group_count;
    i64* counts;            // [rank group][sum, max], then group sum, group max, all sum, all max:
                            // how many numbers the ranks, or the tensors of a step, must complete
    double* numbers;        // these numbers, side by side in the order of `counts`
    SuspendingStep* step;   // created when the step begins
};

// Tensors of all parameter groups, in the optimizer's order. Streams are the parameter, its
// gradient, states that are no scalars, operands and results of matrix ops, then the scalar cells:
// step count and scalar states.
// If a tensor has no gradient, the gradient's dtype is ABSENT, and the kernel skips the tensor.
struct Table {
    i64 tensor_count;
    void* const* address;       // [stream][tensor]
    const i64* elements;        // [tensor]
    const u64* dtypes;          // [tensor], four bits a stream; the lowest are the parameter's
    const int* group;           // [tensor]
    const unsigned char* fresh; // [tensor], bit k: this step created the rule's k-th fresh state
    const double* hypers;       // [group][hyperparameter]
    const double* grad_scale;   // divisor of gradients, or null
    const i64* shape;           // [tensor][SHAPE_SIZE], or null if the rule does not read shapes
    Shards* shards;             // null in kernels whose steps do not suspend
};

// Columns of `shape`: number of dimensions, and the tensor as a batch of matrices.
enum { DIMENSIONS, MATRICES, ROWS, COLUMNS, SHAPE_SIZE };

// Functions of the libgomp that torch has loaded; all null if the process has no libgomp.
struct Threads {
    int count;
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
    int (*id)();
    int (*team_size)();
    void (*barrier)();
};

template <class C>
constexpr u32 DTYPE = sizeof(C) == 8 ? FLOAT64 : FLOAT32;

// If a step moves fewer bytes, a second thread costs more time than it saves.
constexpr i64 MIN_PARALLEL_BYTES = 16 << 20;

// Calls work.run_thread(id, thread count) on all threads, or on this thread if the step moves few
// bytes.
template <class Work>
void run_on_threads(Work& work, const Threads& threads, i64 traffic) {
    struct Region {
        Work& work;
        const Threads& threads;
        static void enter(void* pointer) {
            const Region& region = *static_cast<const Region*>(pointer);
            region.work.run_thread(region.threads.id(), region.threads.team_size());
        }
    } region{work, threads};
    if (threads.count > 1 && traffic > MIN_PARALLEL_BYTES)
        threads.parallel(Region::enter, &region, unsigned(threads.count), 0);
    else work.run_thread(0, 1);
}

// Returns the unit of work that a thread takes in its k-th turn. Threads take turns to and fro, so
// that units of which each is smaller than the one before are shared evenly.
inline i64 unit_of_turn(i64 turn, int id, int count) {
    return turn * count + (turn % 2 ? count - 1 - id : id);
}

// Array on the heap. If there is no memory for the array, the process ends.
template <class T>
struct HeapArray {
    T* data;

    explicit HeapArray(i64 n) : data(static_cast<T*>(__builtin_malloc(u64(n) * sizeof(T)))) {
        if (!data) __builtin_trap();
    }
    HeapArray(const HeapArray&) = delete;
    ~HeapArray() { __builtin_free(data); }
    T& operator[](i64 i) const { return data[i]; }

    void grow(i64 n) {
        data = static_cast<T*>(__builtin_realloc(data, u64(n) * sizeof(T)));
        if (!data) __builtin_trap();
    }
};

// Returns the last of `count` ranges that begins at or before a position; 0 if none does.
inline i64 range_of(i64 position, const HeapArray<i64>& first, i64 count) {
    i64 found = 0;
    for (i64 end = count; found + 1 < end;) {
        const i64 middle = (found + end) / 2;
        (first[middle] <= position ? found : end) = middle;
    }
    return found;
}

}  // namespace optgen
