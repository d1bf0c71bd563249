// The table of tensors that a kernel is given, and the scalar program that runs for each of them.
#include "optgen/runtime/fused_cpu/include/words.h"

namespace optgen {

// A tensor of which this process holds a part: the sizes of the whole, which of its axes are cut
// (as bits: 1 matrices, 2 rows, 4 columns), and with whom a sum over such axes is completed: a
// number that is the runtime's, or -1 where nothing is missing.
struct Shard {
    i64 elements, rows, columns, cut, partners[8];
};

// A step over shards, as the runtime sees it (walk.h).
struct Walk;
struct Shards {
    const Shard* of;  // [tensor]
    i64 partners;     // how many there are
    i64* counts;      // [partner][sum, largest]: how many numbers are to be completed
    double* numbers;  // side by side, in this order
    Walk* walk;       // made when the step begins
};

// Tensors of all groups, in the order of the optimizer. Streams are the parameter, its gradient,
// the rule's states of the parameter's shape, then the scalar ones: step and scalar states.
// A tensor without a gradient has type ABSENT there and is left alone.
struct Table {
    i64 tensors;
    void* const* address;       // [stream][tensor]
    const i64* elements;        // [tensor]
    const u64* types;           // [tensor], four bits a stream, the parameter's lowest
    const int* group;           // [tensor]
    const unsigned char* fresh; // [tensor], bit k: the rule's k-th fresh key was made in this step
    const double* hypers;       // [group][hyperparameter]
    const double* grad_scale;   // what gradients are divided by, or null
    const i64* shape;           // [tensor][SHAPE], or null for rules that do not ask
    Shards* shards;             // or null: tensors are whole
};

// What of a tensor's shape the table has: how many dimensions, and the last two as matrices.
enum { DIMENSIONS, BATCH, ROWS, COLUMNS, SHAPE };

// libgomp as found in the process (torch's own); all null where it has none.
struct Threads {
    int count;
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
    int (*id)();
    int (*team)();
    void (*barrier)();
};

template <class C>
constexpr u32 TYPE = sizeof(C) == 8 ? FLOAT64 : FLOAT32;

// The distance from 1 to the next number of a type.
inline double machine_eps(u32 type) {
    switch (type) {
        case FLOAT64: return 0x1p-52;
        case FLOAT32: return 0x1p-23;
        case FLOAT16: return 0x1p-10;
        default: return 0x1p-7;
    }
}

// Below this many bytes of traffic a second thread costs more than it brings.
constexpr i64 SERIAL = 16 << 20;

template <class T>
struct Buffer {
    T* data;

    explicit Buffer(i64 n) : data(static_cast<T*>(__builtin_malloc(u64(n) * sizeof(T)))) {
        if (!data) __builtin_trap();
    }
    Buffer(const Buffer&) = delete;
    ~Buffer() { __builtin_free(data); }
    T& operator[](i64 i) const { return data[i]; }

    void grow(i64 n) {
        data = static_cast<T*>(__builtin_realloc(data, u64(n) * sizeof(T)));
        if (!data) __builtin_trap();
    }
};

// What a rule may ask of a parameter.
struct Sizes {
    double numel, ndim, rows, cols, machine_eps;
    bool cut;
};

inline bool operator==(const Sizes& a, const Sizes& b) {
    return a.numel == b.numel && a.ndim == b.ndim && a.rows == b.rows && a.cols == b.cols
        && a.machine_eps == b.machine_eps;
}

inline bool factored(const Sizes& sizes) { return sizes.ndim > 1; }
inline bool one_by_one(const Sizes& sizes) {
    return sizes.rows == 1 && sizes.cols == 1 && !sizes.cut;  // else rows lie where no element does
}

// The tensors of a table that a rule is for, and what its scalar program says of each.
template <class R>
struct Program {
    using Hypers = typename R::Hypers;
    using Scalars = typename R::Scalars;
    static constexpr int STREAMS = R::STREAMS, CELLS = R::CELLS;
    static_assert(STREAMS + CELLS <= 16, "four bits a stream in 64");

    const Table& table;
    Buffer<int> run;         // each tensor's run of the scalar program, or -1
    Buffer<Scalars> results; // of each run

    explicit Program(const Table& given_table)
        : table(given_table), run(table.tensors), results(64) {
        prepare();
    }

    const Hypers& hypers(i64 tensor) const {
        return reinterpret_cast<const Hypers*>(table.hypers)[table.group[tensor]];
    }

    const Scalars& scalars(i64 tensor) const {
        return results[run[tensor]];
    }

    void* address(int stream, i64 tensor) const {
        return table.address[stream * table.tensors + tensor];
    }

    u32 type(int stream, i64 tensor) const { return type_of(table.types[tensor], stream); }

    // Whether a tensor is computed with in double.
    bool in_double(i64 tensor) const {
        for (int s = 0; s < STREAMS; ++s)
            if (type(s, tensor) == FLOAT64) return true;
        return false;
    }

    Sizes sizes(i64 tensor) const {
        if (!table.shape) return {};
        const i64* const shape = table.shape + SHAPE * tensor;
        const double ndim = double(shape[DIMENSIONS]), eps = machine_eps(type(0, tensor));
        if (table.shards) {
            const Shard& of = table.shards->of[tensor];
            const double numel = double(of.elements);
            return {numel, ndim, double(of.rows), double(of.columns), eps, of.cut != 0};
        }
        return {
            double(table.elements[tensor]), ndim, double(shape[ROWS]), double(shape[COLUMNS]), eps,
            false};
    }

    // Runs the scalar program of every tensor, and advances its step and scalar states. Neighbours
    // that agree in everything the program reads share one run.
    void prepare() {
        Scalar old[CELLS + 1] = {}, cells[CELLS + 1] = {};
        Sizes last_sizes{};
        i64 last = -1, runs = 0, room = 64;
        for (i64 t = 0; t < table.tensors; ++t) {
            const Sizes its_sizes = R::ASKS_SIZES ? sizes(t) : Sizes{};
            run[t] = -1;
            if (type(1, t) == ABSENT || !R::applies(its_sizes)) continue;
            bool same = last >= 0 && table.group[t] == table.group[last]
                && table.fresh[t] == table.fresh[last] && its_sizes == last_sizes;
            for (int c = 0; c < CELLS; ++c) {
                Scalar cell{0, type(STREAMS + c, t)};
                if (cell.type) cell.value = number_at(cell.type, address(STREAMS + c, t));
                same = same && cell == old[c];
                old[c] = cell;
            }
            if (!same) {
                for (int c = 0; c < CELLS; ++c) cells[c] = old[c];
                if (R::HAS_STEP) cells[0].value = cells[0].rounded(cells[0].value + 1);
                if (runs == room) results.grow(room *= 2);
                results[runs++] = R::program(hypers(t), cells, table.fresh[t], its_sizes);
            }
            for (int c = 0; c < CELLS; ++c)
                if (R::LAST_PART && cells[c].type)
                    set_number(cells[c].type, cells[c].value, address(STREAMS + c, t));
            run[t] = int(runs - 1);
            last = t;
            last_sizes = its_sizes;
        }
    }
};

}  // namespace optgen
