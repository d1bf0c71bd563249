// A rule with reductions is a list of steps: loops over elements, rows, columns or matrices, and
// reductions. A pass runs some of them on every part of a tensor, and others once when all are done.
// Here is what a rule says of them, and in which parts a tensor is taken.
#include "optgen/runtime/fused_cpu/include/axes.h"

namespace optgen {

// The types that streams of a library have, a bit each (levels.py): of others nothing is compiled.
// What has 16 bits is computed with in float32, which then has a bit as well.
#ifdef OPTGEN_TYPES
constexpr u32 KNOWN = OPTGEN_TYPES;
#else
constexpr u32 KNOWN = EVERY_TYPE;
#endif

// What is made of a number of the type computed in, which is double where any stream is of it.
template <class Make>
auto in_type(bool in_double, Make make) {
    if constexpr (!(KNOWN >> FLOAT32 & 1)) return make(double());
    else if constexpr (!(KNOWN >> FLOAT64 & 1)) return make(float());
    else return in_double ? make(double()) : make(float());
}

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

template <class R>
constexpr u64 streams_of_elements() {
    u64 found = 0;
    for (int v = 0; v < R::STREAMS; ++v) found |= u64(R::AXES[v] == TENSOR) << v;
    return found;
}

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
constexpr i64 CACHES = 32 << 20, FAR_SPAN = 1 << 14, STRIP = 512;
// What goes through buffers is taken in shorter tiles and strips: with them it fills a cache. Memory
// is asked so many bytes ahead.
constexpr i64 SHORT_SPAN = 1024, AHEAD = 4096;
// Rows of at least so many elements are swept one by one.
constexpr i64 LONG_ROW = 128;
// So many of them are added up in the type computed in before their sums go into doubles.
constexpr i64 RUN = 64;
// A matrix of at most so many elements is never divided.
constexpr i64 LARGEST_LOCAL = 4096;
// Of so many rows and columns nothing is kept from one pass to the next if that can be (of twice as
// many where it has to be computed anew), and matrices are divided only from so many elements on.
constexpr i64 MANY = 1 << 18, LARGEST_OF_MANY = 1 << 14;
// Of more rows no part of a tensor has whole columns.
constexpr i64 MOST_FLAT = 256;
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
    u32 stored;               // the type of all elements if it is one that loops know; or ABSENT
    i64 batch, rows, columns; // matrices, and the rows and columns of each
    // LOCAL: a part of the tensor has whole matrices; TALL: whole rows; FLAT: whole columns;
    // SHARED: neither. EXACT: and what is stored of rows and columns is not rounded.
    enum Way { LOCAL, TALL, FLAT, EXACT, EXACT_TALL, EXACT_FLAT, SHARED, WAYS } way;
    int inside;               // the axes whose values a part has all of, as bits
    bool local;               // every matrix is done as a whole
    bool distant;             // larger than the caches, of wide rows that loops find in place
    bool by_rows;             // a loop over elements goes row by row, else over all at once
    bool from_memory;         // all tensors together are larger than the caches
    i64 unit;                 // local: the matrices of a tile; else its rows
    i64 span;                 // elements that are worked on together
    i64 width;                // else: the columns of a tile
    i64 bands, chunks;        // else: in what its rows and columns are divided
    i64 blocks;
    int passes;
    char* memory;
    const void* program;
    const Methods* methods;
    i64 first, offset, left; // where several threads share it: its first block among all, where its
                             // memory begins, and the blocks that are not done

    i64 size() const { return rows * columns; }
    bool has_whole(int axes) const { return inside >> axes & 1; }
    bool is_flat() const { return has_whole(COLUMN) && !local; }
    i64 short_span() const { return stored ? SPAN : SHORT_SPAN; } // of short rows

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

// The bytes of an element of a tensor in all that has its shape.
template <class R>
i64 bytes_of_element(const Program<R>& program, i64 t) {
    i64 bytes = 0;
    for (int v = 0; v < R::STREAMS; ++v)
        if (R::AXES[v] == TENSOR) bytes += bytes_of(program.type(v, t));
    return bytes;
}

// The type of all that has a tensor's shape, if loops read it: that computed in, or one of 16 bits.
template <class R>
u32 stored_type(const Program<R>& program, i64 t, bool in_double) {
    const u32 its = program.type(0, t);
    for (int v = 1; v < R::STREAMS; ++v) {
        const u32 type = program.type(v, t);
        if (R::AXES[v] == TENSOR && type && type != its) return ABSENT;
    }
    return in_double == (its == FLOAT64) ? its : ABSENT;
}

// The sizes of a tensor, of which this process may hold a part: what depends on them alone is the
// same for all processes.
struct Extent {
    i64 batch, rows, columns, cut;

    i64 size() const { return rows * columns; }
    bool whole() const { return !(cut & ~MATRIX); }
};

inline Extent extent(const Table& table, i64 t) {
    const i64* const shape = table.shape + SHAPE * t;
    if (!table.shards) return {shape[BATCH], shape[ROWS], shape[COLUMNS], 0};
    const Shard& of = table.shards->of[t];
    return {of.elements / most(1, of.rows * of.columns), of.rows, of.columns, of.cut};
}

// How a tensor with rows and columns is taken: the same way by all processes.
template <class R>
Job::Way choose(const Extent& of, bool exact) {
    const bool tall = of.rows >= of.columns;
    const bool many = of.batch * (of.rows + of.columns) > (exact ? MANY : 2 * MANY);
    const i64 largest = many && of.batch > 1 ? LARGEST_OF_MANY : LARGEST_LOCAL;
    Job::Way way = Job::SHARED;
    if (of.whole() && of.size() && of.size() <= largest) way = Job::LOCAL;
    else if (!many || !of.size() || of.cut & (tall ? 4 : 2)) return way;
    else if (tall && of.columns <= LONG_SPAN) way = Job::TALL;
    else if (!tall && of.rows <= MOST_FLAT) way = Job::FLAT;
    if (way != Job::SHARED && exact) way = Job::Way(way + Job::EXACT);
    return R::PASSES[way] ? way : Job::SHARED;
}

// By the way: of which axes a part has all that their values need.
constexpr int INSIDE[] = {
    set(TENSOR, ROW, COLUMN, MATRIX), set(TENSOR, ROW), set(TENSOR, COLUMN),
    set(TENSOR, ROW, COLUMN, MATRIX), set(TENSOR, ROW), set(TENSOR, COLUMN), set(TENSOR)};

// Whole matrices, a few of them at once.
inline void divide_whole(Job& job) {
    const bool few = job.size() <= LARGEST_LOCAL;
    job.by_rows = job.columns >= LONG_ROW && 2 * job.size() >= SPAN && few;
    job.span = job.by_rows ? LONG_SPAN : job.short_span();
    job.unit = job.by_rows ? 1 : most(1, job.short_span() / most(1, job.size()));
    // What has one number a matrix begins, tile by tile, where a line of the cache does.
    if (job.unit > LINE) job.unit = job.unit / LINE * LINE;
    job.span = most(job.span, job.unit * job.size());
    job.blocks = (job.batch * job.size() + BLOCK - 1) / BLOCK;
}

// Whole columns, a few of them at once.
inline void divide_flat(Job& job, bool in_place) {
    job.unit = most(1, job.rows), job.bands = 1;
    job.width = in_place ? CHUNK : most(job.span / job.unit, STRIP);
    job.span = in_place ? CHUNK : job.width * job.unit;
}

// Bands of rows and chunks of columns of each matrix. Where a process has parts, those of all
// tensors wait for one another, each with its sums: there is less room. `in_place`: nothing of its
// elements goes through buffers, and they are read once in a pass; then a tile may be larger than
// the caches, and whole columns are read along long pieces of their rows.
inline void divide_each(Job& job, bool in_parts, bool in_place) {
    job.by_rows = job.columns >= LONG_ROW;
    job.span = !job.by_rows ? job.short_span() : job.distant ? FAR_SPAN : LONG_SPAN;
    job.unit = most(1, least(job.by_rows ? RUN : job.span, job.span / most(1, job.columns)));
    // Rows whose columns are added up together anyway are one tile if nothing of it is in a buffer.
    const bool joined = in_place && job.by_rows && job.columns <= job.span && !job.distant;
    if (joined) job.unit = RUN / job.unit * job.unit;
    const i64 fitting = (in_parts ? COLUMN_SUMS / 8 : COLUMN_SUMS) / (8 * most(1, job.columns));
    job.bands = most(1, least(least(job.size() / BAND, 64), least(fitting, job.rows)));
    job.chunks = most(1, (job.columns + CHUNK - 1) / CHUNK);
    job.width = job.span;
    if (job.is_flat()) divide_flat(job, in_place);
    job.blocks = job.size() ? job.batch * job.bands * job.chunks : 0;
}

// Whether each pass of a way reads an element at most once, and stores what it writes of it.
template <class R>
constexpr bool reads_once(Job::Way way) {
    for (int p = 0; p < R::PASSES[way]; ++p) {
        const Pass& pass = R::WAYS[way][p];
        int loops = 0;
        for (int k = 0; k < R::STEP_COUNT; ++k) {
            const Step& step = R::STEPS[k];
            if (!(pass.steps >> k & 1) || step.axes != TENSOR || step.kind != Step::LOOP) continue;
            if (step.writes & streams_of_elements<R>() & ~pass.stores || loops++) return false;
        }
    }
    return !has_largest<R>();
}

template <class R>
Job divide(const Program<R>& program, i64 t) {
    const i64* const shape = program.table.shape + SHAPE * t;
    Job job{};
    job.tensor = t;
    job.in_double = program.in_double(t);
    job.batch = shape[BATCH], job.rows = shape[ROWS], job.columns = shape[COLUMNS];
    job.stored = stored_type(program, t, job.in_double);
    if constexpr (R::HAS_AXES) {
        const Extent of = extent(program.table, t);
        job.way = choose<R>(of, is_exact(program, t, job.in_double));
        job.inside = INSIDE[job.way], job.local = job.has_whole(MATRIX);
        const bool wide = job.columns >= WIDE_ROW && !job.is_flat();
        const i64 bytes = program.table.elements[t] * bytes_of_element(program, t);
        job.distant = wide && job.stored && bytes > CACHES;
        constexpr bool shared = reads_once<R>(Job::SHARED), flat = reads_once<R>(Job::EXACT_FLAT);
        const bool once = job.way == Job::SHARED ? shared : flat && job.way == Job::EXACT_FLAT;
        if (!job.local) divide_each(job, !of.whole(), job.stored && once);
    } else {
        job.batch = program.table.elements[t], job.rows = job.columns = 1;
        job.inside = INSIDE[Job::LOCAL], job.local = true;
    }
    if (job.local) divide_whole(job);
    return job;
}

}  // namespace optgen
