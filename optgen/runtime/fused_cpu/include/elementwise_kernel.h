// Entry header of fused C++ kernels for elementwise rules, and overview of all headers. The entry
// header for rules with phases is phased_kernel.h.
//
// The generator prints a rule as a struct `Rule`, and an `optgen_step` that calls step<Rule>(table,
// threads). The runtime pastes the headers over the #include lines when it builds the kernel. The
// headers include nothing else: so a build takes a few tenths of a second, and does not depend on
// the version of torch.
//
// Execution model
//   table    One call updates all tensors of all parameter groups. The table has the address and
//            dtype of every stream: parameter, gradient, states.
//   program  The scalar program computes what follows from step count and hyperparameters, in
//            double, once per tensor or run of equal tensors.
//   plan     A rule with phases gets a tiling plan per tensor: its passes, blocks and tiles. A plan
//            depends on shape and dtypes, never on the number of threads.
//   pass     A pass sweeps all blocks of a tensor, and then runs its finish steps once. A finish
//            step turns sums into numbers, rows or columns that the next pass reads.
//   tile     A block is swept tile by tile. A tile stays in the first-level cache. All loops of the
//            pass run on the tile, by strips if streams are converted or exceed the caches.
//   loop     A generated loop is a template on the storage dtype S and the compute type C. The
//            compiler vectorizes loops over float32 and double; 16-bit elements use VectorPair.
// An elementwise rule has one loop and no plan: a step is one sweep over the list of all elements.
//
// Threads. Threads are libgomp's, from torch's own pool. A step with little traffic runs on one
// thread.
//   elementwise  Each thread has an equal range of the list of elements. There is no barrier.
//   phased       Small tensors go whole to one thread. Threads claim blocks of large tensors. The
//                thread that does a tensor's last block runs the finish steps. A barrier follows
//                each pass over a batch of large tensors.
//   sparse       Each touched row belongs to one thread.
//
// Order of sums. A loop adds up in lanes, and combines the lanes at the end of a row or tile. The
// partial sums are in double. A number or matrix value has a partial sum for each block, a column
// value has one for each band, and a row value has one for each chunk (see tensor_plan.h). When a
// pass ends, partial sums are combined in the order of the blocks. No sum is atomic. So a sum has
// the same bits for any number of threads.
//
// Steps that suspend. On shards, a sum over a sharded axis is complete only when other ranks have
// added theirs. A reduction over several parameters needs a number of each parameter. A tensor is a
// state machine that suspends before it reads such a result. When all tensors are suspended or
// finished, optgen_advance returns, and the runtime completes the results of all tensors together.
// The next call of optgen_advance resumes. optgen_end deletes the step.
//
// Headers, in the order in which they include one another
//   dtypes.h               storage dtypes, and their conversion
//   powers.h               powers, exp, log and tanh of float32, for loops that vectorize
//   elementwise_ops.h      builtins of the language, for one number
//   simd.h                 VectorPair: float32 lanes, with the same builtins
//   block_codes.h          streams of codes, and scales of blocks
//   loads_and_stores.h     between memory and registers: 16 bits, several dtypes, prefetching
//   storage_rounding.h     rounding to the dtype that a parameter is stored in
//   random_numbers.h       random numbers from counters
//   tensor_table.h         interface to the runtime: table, shards, threads
//   scalar_program.h       runs the scalar program
//   elementwise_kernel.h   entry: elementwise rules
//   sparse_kernel.h        entry: sparse gradients
//   broadcast_reduce.h     broadcast and reduction over rows, columns, matrices
//   rule_tables.h          tables of a rule: steps and passes
//   tensor_plan.h          a tensor's plan: sizes of tiles and blocks
//   tensor_passes.h        a tensor's memory and finish steps
//   sweep_interface.h      interface to the sweep library: a rule, type-erased
//   accumulators.h         sums of a block
//   tile_sweep.h           one pass over one block: the sweep library's code
//   phased_kernel.h        entry: rules with phases; the plans of a step, and its threads
//   suspending_kernel.h    entry: sharded parameters, and rules that reduce over several parameters

// Sparse gradients touch rows that lie anywhere in memory. Optimizations beyond -O1 take more than
// half of the build time and have no measurable effect on these kernels. sweep_interface.h says why
// the last two are named.
#if defined(OPTGEN_SPARSE) && !defined(__clang__)
#pragma GCC optimize( \
    "O1", "tree-vectorize", "vect-cost-model=dynamic", "no-trapping-math", "no-math-errno")
#endif

#include "optgen/runtime/fused_cpu/include/block_codes.h"
#include "optgen/runtime/fused_cpu/include/random_numbers.h"
#include "optgen/runtime/fused_cpu/include/scalar_program.h"

namespace optgen {

// Elements of a buffer, for streams of several dtypes and for gradients that must be unscaled.
constexpr i64 BUFFER_ELEMENTS = 512;

template <class R>
constexpr bool is_written(int s) { return !(R::READ_ONLY >> s & 1); }

// A thread's range begins at a multiple of this many elements: a cache line, or blocks of codes.
template <class R>
constexpr i64 UNIT = HAS_CODES<R> ? BUFFER_ELEMENTS : 64;

// Updates n elements by the rule. The last ones, which do not fill a vector, are updated in a copy.
template <class R, class S>
void update(RuleInputs<R> inputs, i64 n, const Stream<S>* streams) {
    constexpr i64 lanes = LANES<ComputeType<S>>;
    const i64 rest = n % lanes, in_vectors = n - rest;
    if (in_vectors) R::template update<S>(inputs, in_vectors, streams);
    if (!rest) return;
    float memory[R::STREAMS][lanes] = {}; // 16-bit streams fill half of their rows
    Stream<S> copies[R::STREAMS];
    for (int s = 0; s < R::STREAMS; ++s) {
        copies[s] = stream_at(memory[s], streams[s]);
        if (streams[s]) copy_elements(copies[s], streams[s] + in_vectors, rest);
    }
    inputs.first += in_vectors;
    R::template update<S>(inputs, lanes, copies);
    for (int s = 0; s < R::STREAMS; ++s)
        if (is_written<R>(s) && streams[s]) copy_elements(streams[s] + in_vectors, copies[s], rest);
}

template <class R>
struct ElementwiseKernel : Program<R> {
    using Program<R>::STREAMS, Program<R>::table, Program<R>::run_index, Program<R>::address;
    using Program<R>::inputs, Program<R>::dtype;

    HeapArray<i64> first_element; // [tensor]: in the list of all elements; a multiple of UNIT
    i64 traffic = 0; // bytes that the step moves

    explicit ElementwiseKernel(const Table& given_table)
        : Program<R>(given_table), first_element(table.tensor_count + 1) {
        i64 next_element = 0;
        for (i64 t = 0; t < table.tensor_count; ++t) {
            first_element[t] = next_element;
            if (run_index[t] < 0) continue;
            next_element += rounded_up(table.elements[t], UNIT<R>);
            for (int s = 0; s < STREAMS; ++s) traffic += table.elements[t] * itemsize(dtype(s, t));
        }
        first_element[table.tensor_count] = next_element;
    }

    // Updates streams of the compute dtype C in place, and all others through buffers: streams
    // whose dtype no loop converts in registers, and gradients that must be unscaled.
    template <class C>
    void update_through_buffers(i64 t, i64 first, i64 n) const {
        C buffer[STREAMS][BUFFER_ELEMENTS];
        for (const i64 end = first + n; first < end; first += BUFFER_ELEMENTS) {
            const i64 count = min(end - first, BUFFER_ELEMENTS);
            Stream<C> streams[STREAMS];
            for (int s = 0; s < STREAMS; ++s) {
                const u32 stored_dtype = dtype(s, t);
                if (stored_dtype == ABSENT) streams[s] = nullptr;
                else if (stored_dtype == DTYPE<C>)
                    streams[s] = static_cast<C*>(address(s, t)) + first;
                else read_stream(s, t, first, count, streams[s] = buffer[s]);
            }
            if (table.grad_scale) unscale(t, first, count, streams[1], buffer[1]);
            update<R, C>(inputs(t, first), count, streams);
            for (int s = 0; s < STREAMS; ++s)
                if (is_written<R>(s) && streams[s] == buffer[s])
                    write_stream(s, t, first, count, streams[s]);
        }
    }

    template <class C>
    void read_stream(int s, i64 t, i64 first, i64 n, C* to) const {
        if constexpr (HAS_CODES<R>)
            if (dtype(s, t) == INT8)
                return read_codes(R::CODES[s], address(s, t), table.elements[t], first, n, to);
        read(dtype(s, t), address(s, t), first, n, to);
    }

    template <class C>
    void write_stream(int s, i64 t, i64 first, i64 n, const C* from) const {
        if constexpr (HAS_CODES<R>)
            if (dtype(s, t) == INT8)
                return write_codes(R::CODES[s], from, address(s, t), table.elements[t], first, n);
        write(dtype(s, t), from, address(s, t), first, n);
    }

    // Unscales gradients in place, as torch's fused kernels do.
    template <class C>
    void unscale(i64 t, i64 first, i64 n, C* grads, const C* buffer) const {
        const C scale = C(*table.grad_scale);
        for (i64 i = 0; i < n; ++i) grads[i] /= scale;
        if (grads == buffer) write(dtype(1, t), grads, address(1, t), first, n);
    }

    // Updates streams of one dtype in place.
    template <class S>
    void update_in_place(i64 t, i64 first, i64 n) const {
        Stream<S> streams[STREAMS];
        for (int s = 0; s < STREAMS; ++s)
            streams[s] = dtype(s, t) ? static_cast<S*>(address(s, t)) + first : nullptr;
        update<R, S>(inputs(t, first), n, streams);
    }

    // Updates streams of float32, bfloat16 and float16 in place.
    void update_in_registers(i64 t, i64 first, i64 n) const {
        MixedStream streams[STREAMS];
        for (int s = 0; s < STREAMS; ++s)
            if (dtype(s, t))
                streams[s] = MixedStream{static_cast<char*>(address(s, t)), dtype(s, t)} + first;
        update<R, Mixed>(inputs(t, first), n, streams);
    }

    // Returns the dtypes of all streams, one bit each; 0 if gradients must be unscaled.
    u32 dtypes_in_place(i64 t) const {
        u32 dtypes = 0;
        for (int s = 0; s < STREAMS; ++s) dtypes |= 1u << dtype(s, t);
        return table.grad_scale ? 0 : dtypes & ~(1u << ABSENT);
    }

    void update_tensor(i64 t, i64 first, i64 n) const {
        const u32 dtypes = dtypes_in_place(t);
        if constexpr (IS_COMPILED<FLOAT64>) {
            if (dtypes == 1 << FLOAT64) return update_in_place<double>(t, first, n);
            if (this->in_double(t)) return update_through_buffers<double>(t, first, n);
        }
        if constexpr (IS_COMPILED<BFLOAT16>)
            if (dtypes == 1 << BFLOAT16) return update_in_place<bfloat16>(t, first, n);
        if constexpr (IS_COMPILED<FLOAT16>)
            if (dtypes == 1 << FLOAT16) return update_in_place<float16>(t, first, n);
        if constexpr (IS_COMPILED<FLOAT32>) {
            if (dtypes == 1 << FLOAT32) return update_in_place<float>(t, first, n);
            if constexpr (IS_COMPILED<BFLOAT16> || IS_COMPILED<FLOAT16>)
                if (dtypes && !(dtypes >> INT8 & 1)) return update_in_registers(t, first, n);
            update_through_buffers<float>(t, first, n);
        }
    }

    // Updates one thread's range of the list of all elements.
    void run_thread(i64 id, i64 team_size) const {
        const i64 units = first_element[table.tensor_count] / UNIT<R>;
        const i64 low = units * id / team_size * UNIT<R>;
        const i64 high = units * (id + 1) / team_size * UNIT<R>;
        i64 t = range_of(low, first_element, table.tensor_count);
        for (; t < table.tensor_count && first_element[t] < high; ++t) {
            const i64 first = max(low - first_element[t], 0);
            const i64 last = min(high - first_element[t], table.elements[t]);
            if (run_index[t] < 0 || first >= last) continue;
            update_tensor(t, first, last - first);
        }
    }
};

// Takes one step of all tensors of the table.
template <class R>
void step(const Table& table, const Threads& threads) {
    const ElementwiseKernel<R> kernel(table);
    run_on_threads(kernel, threads, kernel.traffic);
}

}  // namespace optgen
