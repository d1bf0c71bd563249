// What every fused C++ kernel of a rule with reductions shares: how a tensor is taken through them.
// A rule is a list of steps: loops over elements, rows, columns or matrices, and reductions. A pass
// runs some of them on every part of a tensor, and others once when all parts are done.
#include "optgen/runtime/fused_cpu/axes.h"

namespace optgen {

struct Step {
    enum Kind { LOOP, SUM, LARGEST } kind;
    int axes;          // of a loop, or of what a reduction makes
    u64 reads, writes; // values, a bit each
    int number;        // which reduction it is of those to the same axes
};

template <class... Members>
constexpr u64 set(Members... members) {
    return (u64(0) | ... | (u64(1) << members));
}

struct Pass {
    u64 steps;  // run on every part, a bit each
    u64 finish; // and then on the whole
    u64 stores; // the values that are stored
};

// Whether a rule looks for the largest of something: else nothing of that is compiled.
template <class R>
constexpr bool has_largest() {
    for (const Step& step : R::STEPS)
        if (step.kind == Step::LARGEST) return true;
    return false;
}

// Elements that are worked on together, so that they stay in the nearest cache: of short rows, and
// of longer ones, which take fewer buffers.
constexpr i64 SPAN = 2048, LONG_SPAN = 4096;
// Wide rows of a tensor larger than the caches, where nothing of it goes through buffers, are swept in
// longer tiles, strip by strip, and memory is asked so far ahead for what comes.
constexpr i64 WIDE_ROW = 2048;
constexpr i64 CACHES = 32 << 20, FAR_SPAN = 1 << 14, STRIP = 512, AHEAD = 1024;
// Tiles of so many matrices, or a multiple, begin where a line of the cache does.
constexpr i64 LINE = 16;
// Rows of at least so many elements are swept one by one.
constexpr i64 LONG_ROW = 128;
// So many of them are added up in the type computed in before their sums go into doubles.
constexpr i64 RUN = 64;
// A matrix of at most so many elements is never divided.
constexpr i64 LARGEST_LOCAL = 4096;
// About as many elements are given to a thread at a time: of small matrices, and rows of one.
constexpr i64 BLOCK = 1 << 16, BAND = 1 << 18;
// Longer rows are divided.
constexpr i64 CHUNK = 1 << 14;
// At most so many bytes for what the bands of a matrix add their columns up in.
constexpr i64 COLUMN_SUMS = 1 << 20;

constexpr i64 rounded_up(i64 n, i64 unit) { return (n + unit - 1) / unit * unit; }
constexpr i64 least(i64 a, i64 b) { return a < b ? a : b; }
constexpr i64 most(i64 a, i64 b) { return a > b ? a : b; }

// A part of a tensor: where it begins, and how much of each it has.
struct Tile {
    i64 matrix, row, column, element;
    i64 matrices, rows, columns, elements;

    i64 first(int axes) const {
        return axes == MATRIX ? matrix : axes == ROW ? row : axes == COLUMN ? column : element;
    }
    i64 count(int axes) const {
        return axes == MATRIX ? matrices : axes == ROW ? rows : axes == COLUMN ? columns : elements;
    }
};

struct Job;

// What is done with a job, in the type computed in; bytes and scratch say what memory that takes.
struct Methods {
    i64 (*bytes)(const Job&);
    i64 (*scratch)(const Job&);
    void (*begin)(const Job&);
    void (*sweep)(const Job&, int pass, i64 block, char* scratch);
    void (*finish)(const Job&, int pass);
};

// One tensor in one step, and how it is divided: the same for any number of threads.
struct Job {
    i64 tensor;
    bool in_double;
    i64 batch, rows, columns; // matrices, and the rows and columns of each
    enum Way { LOCAL, SHARED, EXACT } way; // EXACT: local, states of rows are kept unrounded
    bool local;               // every matrix is done as a whole
    bool distant;             // larger than the caches, of wide rows of the type computed in
    bool by_rows;             // a loop over elements goes row by row, else over all at once
    i64 unit;                 // local: the matrices of a tile
    i64 bands, chunks;        // else: in what its rows and columns are divided
    i64 blocks;
    int passes;
    char* memory;
    const void* program;
    const Methods* methods;
    i64 first, offset, left; // where several threads share it: its first block among all, where its
                             // memory begins, and the blocks that are not done

    i64 size() const { return rows * columns; }
    i64 span() const { return !by_rows ? SPAN : distant ? FAR_SPAN : LONG_SPAN; }

    Tile all() const {
        return {0, 0, 0, 0, batch, batch * rows, batch * columns, batch * size()};
    }
};

// Whether the states of rows and columns are of the type computed in.
template <class R>
bool is_exact(const Program<R>& program, i64 t, bool in_double) {
    bool exact = R::HAS_AXES;
    for (int v = 0; v < R::STREAMS; ++v) {
        const u32 type = program.type(v, t);
        exact = exact && (R::AXES[v] == TENSOR || !type || type == (in_double ? FLOAT64 : FLOAT32));
    }
    return exact;
}

template <class R>
bool is_distant(const Program<R>& program, i64 t, bool in_double) {
    i64 bytes = 0;
    for (int v = 0; v < R::STREAMS; ++v) {
        const u32 type = program.type(v, t);
        if (R::AXES[v] != TENSOR || !type) continue;
        if (type != (in_double ? FLOAT64 : FLOAT32)) return false;
        bytes += program.table.elements[t] * bytes_of(type);
    }
    return bytes > CACHES;
}

template <class R>
Job divide(const Program<R>& program, i64 t) {
    const i64* const shape = program.table.shape + SHAPE * t;
    Job job{};
    job.tensor = t;
    job.in_double = program.in_double(t);
    job.batch = shape[BATCH], job.rows = shape[ROWS], job.columns = shape[COLUMNS];
    if (!R::HAS_AXES) job.batch = program.table.elements[t], job.rows = job.columns = 1;
    job.local = !R::HAS_AXES || (job.size() && job.size() <= LARGEST_LOCAL);
    const bool exact = is_exact(program, t, job.in_double);
    job.way = !job.local ? Job::SHARED : exact ? Job::EXACT : Job::LOCAL;
    job.by_rows = job.columns >= LONG_ROW && (!job.local || 2 * job.size() >= SPAN);
    job.distant = job.columns >= WIDE_ROW && is_distant(program, t, job.in_double);
    if (job.local) {
        job.unit = job.by_rows ? 1 : most(1, SPAN / job.size());
        if (job.unit > LINE) job.unit = job.unit / LINE * LINE;
        job.blocks = (job.batch * job.size() + BLOCK - 1) / BLOCK;
    } else {
        const i64 fitting = COLUMN_SUMS / (8 * most(1, job.columns));
        job.bands = most(1, least(least(job.size() / BAND, 64), least(fitting, job.rows)));
        job.chunks = most(1, (job.columns + CHUNK - 1) / CHUNK);
        job.blocks = job.size() ? job.batch * job.bands * job.chunks : 0;
    }
    return job;
}

// What the loops of a rule are given beside their values.
template <class R>
struct Given {
    const typename R::Hypers& hypers;
    const typename R::Scalars& scalars;
    unsigned fresh;
    Sizes sizes;
    double* numbers;  // [NUMBERS], what is one number for the whole tensor
    double* partials; // [NUMBERS], sums over the block that is swept

    typename R::Numbers& named() const { return *reinterpret_cast<typename R::Numbers*>(numbers); }
    typename R::Numbers& sums() const { return *reinterpret_cast<typename R::Numbers*>(partials); }
};

// A tensor and its memory, which lasts for the step. C is the type computed in.
template <class R, class C>
struct Tensor {
    static constexpr int STREAMS = R::STREAMS, VALUES = R::VALUES, NUMBERS = R::NUMBERS;
    static_assert(R::STEP_COUNT <= 64 && VALUES <= 64, "too many steps or values for one rule");

    const Program<R>& program;
    const Job& job;
    double* numbers;     // [NUMBERS]
    double* partials;    // [block][NUMBERS]
    C* whole[VALUES];    // not local: rows, columns and matrix numbers, unrounded
    double* row_sums;    // not local: [reduction][chunk][row]
    double* column_sums; // not local: [reduction][band][column]
    i64 bytes;

    Tensor(const Program<R>& given_program, const Job& given_job)
        : program(given_program), job(given_job) {
        char* at = job.memory;
        numbers = take<double>(at, NUMBERS);
        partials = take<double>(at, job.blocks * NUMBERS);
        if (!job.local) {
            for (int v = 0; v < VALUES; ++v)
                whole[v] = is_whole(v) ? take<C>(at, job.all().count(R::AXES[v])) : nullptr;
            row_sums = take<double>(at, R::ROW_REDUCTIONS * job.chunks * job.all().rows);
            column_sums = take<double>(at, R::COLUMN_REDUCTIONS * job.bands * job.all().columns);
        }
        bytes = at - job.memory;
    }

    static bool is_whole(int v) { return R::AXES[v] != TENSOR; }

    template <class T>
    static T* take(char*& at, i64 n) {
        T* const taken = reinterpret_cast<T*>(at);
        at += rounded_up((n + PADDING) * i64(sizeof(T)), 64);
        return taken;
    }

    const Pass* passes() const {
        if constexpr (R::HAS_AXES) {
            if (job.way == Job::SHARED) return R::SHARED;
            if (job.way == Job::EXACT) return R::EXACT;
        }
        return R::LOCAL;
    }

    Given<R> given(i64 block) const {
        const i64 t = job.tensor;
        return {
            program.hypers(t), program.scalars(t), program.table.fresh[t], program.sizes(t),
            numbers, partials + block * NUMBERS};
    }

    u32 type(int stream) const { return program.type(stream, job.tensor); }
    void* address(int stream) const { return program.address(stream, job.tensor); }

    void begin() const {
        for (i64 i = 0; i < NUMBERS; ++i) numbers[i] = 0;
        if (job.local) return;
        for (int v = 0; v < STREAMS; ++v)
            if (is_whole(v) && type(v))
                read(type(v), address(v), 0, job.all().count(R::AXES[v]), whole[v]);
    }

    // Puts together what the blocks of a pass have left, and runs the steps that wait for it.
    APART void finish(const Pass& pass) const {
        for (int k = 0; k < R::STEP_COUNT; ++k) {
            const Step& step = R::STEPS[k];
            if (pass.steps >> k & 1) join(step);
            if (pass.finish >> k & 1) whole_step(k, step);
        }
        for (int v = 0; R::HAS_AXES && v < STREAMS; ++v)
            if (!job.local && is_whole(v) && pass.stores >> v & 1 && type(v))
                write(type(v), whole[v], address(v), 0, job.all().count(R::AXES[v]));
    }

    // Partial results, in the order of the blocks.
    void join(const Step& step) const {
        if (step.kind == Step::SUM) join<Sum>(step);
        if constexpr (has_largest<R>())
            if (step.kind == Step::LARGEST) join<Largest>(step);
    }

    template <class Join>
    void join(const Step& step) const {
        if (step.axes == NONE)
            for (i64 block = 0, n = step.number; block < job.blocks; ++block)
                numbers[n] = Join::join(numbers[n], partials[block * NUMBERS + n]);
        else if constexpr (R::HAS_AXES)
            if (!job.local) join_axes<Join>(step);
    }

    template <class Join>
    void join_axes(const Step& step) const {
        const int to = __builtin_ctzll(step.writes), n = step.number;
        const Tile all = job.all();
        if (step.axes == ROW)
            join_parts<Join>(row_sums + n * job.chunks * all.rows, job.chunks, all.rows, whole[to]);
        else if (step.axes == COLUMN)
            join_parts<Join>(
                column_sums + n * job.bands * all.columns, job.bands, all.columns, whole[to]);
    }

    template <class Join>
    static void join_parts(double* __restrict parts, i64 count, i64 n, C* __restrict to) {
        for (i64 p = 1; p < count; ++p)
            for (i64 i = 0; i < n; ++i) parts[i] = Join::join(parts[i], parts[p * n + i]);
        for (i64 i = 0; i < n; ++i) to[i] = C(parts[i]);
    }

    // A loop over all rows, columns or matrices, or a reduction of them.
    void whole_step(int k, const Step& step) const {
        if (step.kind == Step::LOOP && step.axes == NONE) return R::run_numbers(k, given(0));
        if constexpr (R::HAS_AXES) whole_axes(k, step);
    }

    void whole_axes(int k, const Step& step) const {
        if (step.kind == Step::SUM) return reduce_whole<Sum>(step);
        if constexpr (has_largest<R>())
            if (step.kind == Step::LARGEST) return reduce_whole<Largest>(step);
        const i64 n = step.axes == MATRIX ? job.batch : job.all().count(step.axes) / job.batch;
        for (i64 m = 0; m < (step.axes == MATRIX ? 1 : job.batch); ++m) {
            C* at[VALUES];
            for (int v = 0; v < VALUES; ++v)
                at[v] = whole[v] + m * (R::AXES[v] == MATRIX ? 1 : n);
            R::template run<C, false>(k, given(0), 1, n, at);
        }
    }

    template <class Join>
    void reduce_whole(const Step& step) const {
        const int from = __builtin_ctzll(step.reads);
        const i64 n = job.all().count(R::AXES[from]);
        if (step.axes == NONE)
            numbers[step.number] =
                Join::join(numbers[step.number], total<Join>(whole[from], n));
        else
            row_totals<Join>(
                whole[from], job.batch, n / job.batch, whole[__builtin_ctzll(step.writes)]);
    }
};

}  // namespace optgen
