// Runs a rule's scalar program: what follows from step count, hyperparameters and scalar states.
#include "optgen/runtime/fused_cpu/include/block_codes.h"
#include "optgen/runtime/fused_cpu/include/elementwise_ops.h"
#include "optgen/runtime/fused_cpu/include/tensor_table.h"

namespace optgen {

// Returns the distance from 1 to the next number of a dtype.
inline double machine_eps(u32 dtype) {
    switch (dtype) {
        case FLOAT64: return 0x1p-52;
        case FLOAT32: return 0x1p-23;
        case FLOAT16: return 0x1p-10;
        default: return 0x1p-7;
    }
}

// Properties of a parameter that a rule may read.
struct Sizes {
    double numel, ndim, rows, cols, machine_eps;
    bool is_sharded;
};

inline bool operator==(const Sizes& a, const Sizes& b) {
    return a.numel == b.numel && a.ndim == b.ndim && a.rows == b.rows && a.cols == b.cols
        && a.machine_eps == b.machine_eps;
}

inline bool factored(const Sizes& sizes) { return sizes.ndim > 1; }
inline bool tall(const Sizes& sizes) { return factored(sizes) && sizes.rows >= sizes.cols; }
inline bool one_by_one(const Sizes& sizes) {
    // On a sharded 1 x 1 tensor, a rank may hold a row's value without the element.
    return sizes.rows == 1 && sizes.cols == 1 && !sizes.is_sharded;
}

// What most rules have in common; a rule hides the members that it has otherwise.
struct RuleDefaults {
    static constexpr u32 READ_ONLY = 1 << 1;    // bit s: stream s, only the gradient, is read-only
    static constexpr BlockCodes CODES[] = {{0, DYNAMIC}}; // [stream]
    static constexpr bool SCATTER_ADDS = false; // it only adds multiples of the gradient
    static constexpr bool READS_SIZES = false;  // of the tensor, in its scalar program
    // Matrix ops divide a rule into parts, of which only the last one stores scalar cells.
    static constexpr bool STORES_CELLS = true;
};

// Inputs of a rule's loops besides their arrays.
template <class R>
struct RuleInputs {
    const typename R::Hypers& hypers;
    const typename R::Scalars& scalars;
    unsigned fresh_bits;
    i64 first; // index of the first element, on which random numbers depend
};

// Tensors of a table that a rule applies to, with the results of its scalar program.
template <class R>
struct Program {
    using Hypers = typename R::Hypers;
    using Scalars = typename R::Scalars;
    static constexpr int STREAMS = R::STREAMS, CELLS = R::CELLS;
    static constexpr i64 INITIAL_CAPACITY = 64; // of `results`, which grows
    static_assert(STREAMS + CELLS <= 16, "64 bits have room for the dtypes of 16 streams");

    const Table& table;
    HeapArray<int> run_index;   // [tensor]: index of the run of the scalar program that has its
                                // results, or -1 if the rule does not apply to the tensor
    HeapArray<Scalars> results; // [run]

    explicit Program(const Table& given_table)
        : table(given_table), run_index(table.tensor_count), results(INITIAL_CAPACITY) {
        run_scalar_programs();
    }

    const Hypers& hypers(i64 tensor) const {
        return reinterpret_cast<const Hypers*>(table.hypers)[table.group[tensor]];
    }

    const Scalars& scalars(i64 tensor) const {
        return results[run_index[tensor]];
    }

    RuleInputs<R> inputs(i64 tensor, i64 first = 0) const {
        return {hypers(tensor), scalars(tensor), table.fresh[tensor], first};
    }

    void* address(int stream, i64 tensor) const {
        return table.address[stream * table.tensor_count + tensor];
    }

    u32 dtype(int stream, i64 tensor) const { return dtype_of(table.dtypes[tensor], stream); }

    // Tells whether a tensor is computed in double.
    bool in_double(i64 tensor) const {
        for (int s = 0; s < STREAMS; ++s)
            if (dtype(s, tensor) == FLOAT64) return true;
        return false;
    }

    Sizes sizes(i64 tensor) const {
        if (!table.shape) return {};
        const i64* const shape = table.shape + SHAPE_SIZE * tensor;
        const double ndim = double(shape[DIMENSIONS]), eps = machine_eps(dtype(0, tensor));
        if (table.shards && table.shards->by_tensor) {
            const Shard& shard = table.shards->by_tensor[tensor];
            const double numel = double(shard.elements), rows = double(shard.rows);
            return {numel, ndim, rows, double(shard.columns), eps, shard.sharded_axes != 0};
        }
        return {
            double(table.elements[tensor]), ndim, double(shape[ROWS]), double(shape[COLUMNS]), eps,
            false};
    }

    // Runs the scalar program of every tensor, and advances its step count and scalar states.
    // Consecutive tensors share one run if all inputs of the program are equal.
    void run_scalar_programs() {
        Scalar inputs[CELLS + 1] = {}, cells[CELLS + 1] = {};
        Sizes last_sizes{};
        i64 last_tensor = -1, run_count = 0, capacity = INITIAL_CAPACITY;
        for (i64 t = 0; t < table.tensor_count; ++t) {
            const Sizes tensor_sizes = R::READS_SIZES ? sizes(t) : Sizes{};
            run_index[t] = -1;
            if (dtype(1, t) == ABSENT || !R::applies(tensor_sizes)) continue;
            bool shares_run = last_tensor >= 0 && table.group[t] == table.group[last_tensor]
                && table.fresh[t] == table.fresh[last_tensor] && tensor_sizes == last_sizes;
            for (int c = 0; c < CELLS; ++c) {
                Scalar cell{0, dtype(STREAMS + c, t)};
                if (cell.dtype) cell.value = read_scalar(cell.dtype, address(STREAMS + c, t));
                shares_run = shares_run && cell == inputs[c];
                inputs[c] = cell;
            }
            if (!shares_run) {
                for (int c = 0; c < CELLS; ++c) cells[c] = inputs[c];
                if (R::HAS_STEP) cells[0].value = cells[0].rounded_to_dtype(cells[0].value + 1);
                if (run_count == capacity) results.grow(capacity *= 2);
                results[run_count++] = R::program(hypers(t), cells, table.fresh[t], tensor_sizes);
            }
            // Matrix ops split a rule into parts. Each part needs the old values, so only the last
            // part stores new values.
            for (int c = 0; c < CELLS; ++c)
                if (R::STORES_CELLS && cells[c].dtype)
                    write_scalar(cells[c].dtype, cells[c].value, address(STREAMS + c, t));
            run_index[t] = int(run_count - 1);
            last_tensor = t;
            last_sizes = tensor_sizes;
        }
    }
};

}  // namespace optgen
