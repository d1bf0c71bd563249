// A rule with reductions is a list of steps: loops over elements, rows, columns or matrices, and
// reductions. A pass runs some of them on every part of a tensor, and others once when all are done.
// Here is what a rule says of them, and in which parts a tensor is taken.
#include "optgen/runtime/fused_cpu/axes.h"

namespace optgen {

// The types that a library knows, a bit each (levels.py): of others nothing is compiled.
#ifdef OPTGEN_TYPES
constexpr u32 KNOWN = OPTGEN_TYPES;
#else
constexpr u32 KNOWN = EVERY_TYPE;
#endif
constexpr bool KNOWS_DOUBLE = KNOWN >> FLOAT64 & 1;

struct Step {
    enum Kind { LOOP, SUM, LARGEST } kind;
    int axes;          // of a loop, or of what a reduction makes
    u64 reads, writes; // values, a bit each
    int number;        // which reduction it is of those to the same axes
};

// As many as a word has bits for.
constexpr int MOST_VALUES = 64;
constexpr int MOST_PASSES = 16;

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
// Wide rows of a tensor larger than the caches, where nothing of it goes through buffers, are swept
// in longer tiles, strip by strip, and memory is asked so far ahead for what comes.
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
    const Shards* const shards = program.table.shards;
    const bool whole = !shards || !(shards->of[t].cut & ~MATRIX);
    job.local = !R::HAS_AXES || (whole && job.size() && job.size() <= LARGEST_LOCAL);
    const bool exact = is_exact(program, t, job.in_double);
    job.way = !job.local ? Job::SHARED : exact ? Job::EXACT : Job::LOCAL;
    job.by_rows = job.columns >= LONG_ROW && (!job.local || 2 * job.size() >= SPAN);
    job.distant = job.columns >= WIDE_ROW && is_distant(program, t, job.in_double);
    if (job.local) {
        job.unit = job.by_rows ? 1 : most(1, SPAN / job.size());
        if (job.unit > LINE) job.unit = job.unit / LINE * LINE;
        job.blocks = (job.batch * job.size() + BLOCK - 1) / BLOCK;
    } else {
        // Parts of all tensors wait for one another, each with its sums.
        const i64 room = whole ? COLUMN_SUMS : COLUMN_SUMS / 8;
        const i64 fitting = room / (8 * most(1, job.columns));
        job.bands = most(1, least(least(job.size() / BAND, 64), least(fitting, job.rows)));
        job.chunks = most(1, (job.columns + CHUNK - 1) / CHUNK);
        job.blocks = job.size() ? job.batch * job.bands * job.chunks : 0;
    }
    return job;
}

}  // namespace optgen
