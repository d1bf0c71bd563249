// The plan of one tensor: its tiling strategy, and the sizes of tiles, blocks, bands and chunks.
#include "optgen/runtime/fused_cpu/include/rule_tables.h"
#include "optgen/runtime/fused_cpu/include/block_codes.h"

namespace optgen {

// Elements of a tile, which stay in the first-level cache. Tiles of longer rows are larger, because
// they need fewer buffers.
constexpr i64 SHORT_ROW_TILE = 2048, LONG_ROW_TILE = 4096;
// A tile may be longer if a rule has no row or column values, and reads and writes all elements in
// place, once in a pass. Its loop still runs over SHORT_ROW_TILE elements at a time: a longer sum
// in the compute dtype would be less exact.
constexpr i64 IN_PLACE_TILE = 1 << 13;
// A tensor is swept in longer tiles of UNCACHED_TILE elements, in strips of STRIP elements, if it
// is larger than the caches, no stream goes through a buffer, and rows have at least WIDE_ROW
// elements.
constexpr i64 WIDE_ROW = 2048;
constexpr i64 CACHE_BYTES = 32 << 20, UNCACHED_TILE = 1 << 14, STRIP = 512;
// Streams that are converted go through buffers that fill a cache, so their tiles and strips are
// shorter. A loop over strips prefetches memory PREFETCH_BYTES further on.
inline constexpr i64 CONVERTED_TILE = 1024, PREFETCH_BYTES = 4096;
// Elements of a tile of a rule with codes: whole blocks. Longer tiles are slower, because
// hardware prefetches less far while codes are converted.
constexpr i64 CODED_TILE = 512;
// A loop over elements runs row by row if rows have at least this many elements.
constexpr i64 LONG_ROW = 128;
// This many rows are summed in the compute dtype before their sums are added to doubles.
constexpr i64 SUMMED_ROWS = 64;
// A matrix of at most this many elements is never split.
constexpr i64 MAX_WHOLE_MATRIX = 4096;
// If a tensor has more row and column values than this, no pass keeps such a value for the next
// pass, if possible. The limit is twice as high if row and column states are stored rounded, since
// values must then be recomputed. Above the limit, matrices of a batch are split only above
// MAX_WHOLE_MATRIX_OF_MANY elements.
constexpr i64 MANY_AXIS_VALUES = 1 << 18, MAX_WHOLE_MATRIX_OF_MANY = 1 << 14;
// A tile has whole columns only if matrices have at most this many rows.
constexpr i64 MAX_WHOLE_COLUMN = 256;
// Approximate number of elements of a block of small matrices, and of a band. Threads claim blocks.
constexpr i64 BLOCK_ELEMENTS = 1 << 16, BAND_ELEMENTS = 1 << 18;
// A chunk has at most this many columns: longer rows are split into chunks.
constexpr i64 CHUNK_COLUMNS = 1 << 14;
// Limits for the column sums of all bands of a matrix, and for the number of its bands.
constexpr i64 COLUMN_SUM_BYTES = 1 << 20, MAX_BANDS = 64;


// Part of a tensor: its first matrix, row, column and element, and how many of each it has.
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

struct TensorPlan;

// Operations on a planned tensor, in its compute dtype.
struct TensorMethods {
    i64 (*tensor_bytes)(const TensorPlan&);  // memory that the blocks of the tensor share
    i64 (*scratch_bytes)(const TensorPlan&); // memory that a thread needs
    void (*begin)(const TensorPlan&);
    void (*sweep)(const TensorPlan&, int pass, i64 block, char* scratch);
    void (*finish)(const TensorPlan&, int pass);
};

// Plan of one tensor in one step. A plan is the same for any number of threads.
struct TensorPlan {
    i64 tensor;               // index of the tensor in the table
    bool in_double;
    u32 loop_dtype;           // dtype of all elements if loops can read it, else ABSENT
    i64 matrices;             // the tensor is a batch of so many matrices
    i64 rows, columns;        // of each matrix
    // Contents of a tile: whole matrices, whole rows, whole columns, or none of these (SPLIT). With
    // EXACT strategies, row and column states are stored in the compute dtype, without rounding.
    enum Strategy {
        WHOLE_MATRICES, WHOLE_ROWS, WHOLE_COLUMNS, EXACT_MATRICES, EXACT_ROWS, EXACT_COLUMNS,
        SPLIT, STRATEGIES
    } strategy;
    int complete_axes;        // bits: a tile can compute the values of these axes by itself
    bool has_whole_matrices;  // a tile has whole matrices
    bool exceeds_cache;       // larger than the caches, with wide rows that loops read in place
    bool by_rows;             // loops over elements run row by row, else over all elements at once
    bool step_exceeds_cache;  // all tensors of the step together are larger than the caches
    i64 tile_height;          // matrices of a tile if it has whole matrices, else rows
    i64 tile_elements;
    i64 tile_width;           // columns of a tile, unless it has whole matrices
    i64 band_count;           // bands of a split matrix: groups of its rows
    i64 chunk_count;          // chunks of a split matrix: ranges of its columns
    i64 block_count;
    int pass_count;
    char* memory;
    const void* program;
    const TensorMethods* methods;
    i64 first_block, memory_offset, blocks_left; // if threads share the tensor: its first block in
                                                 // the batch, its memory, blocks not yet done

    i64 matrix_size() const { return rows * columns; }
    bool is_complete(int axes) const { return complete_axes >> axes & 1; }
    bool has_whole_columns() const { return is_complete(COLUMN) && !has_whole_matrices; }
    i64 short_row_tile() const { return loop_dtype ? SHORT_ROW_TILE : CONVERTED_TILE; }

    // Returns the whole tensor as a tile.
    Tile extent() const {
        return {0, 0, 0, 0,
                matrices, matrices * rows, matrices * columns, matrices * matrix_size()};
    }
};

// Tells whether row and column states are stored in the compute dtype.
template <class R>
bool has_exact_axis_states(const Program<R>& program, i64 t, bool in_double) {
    bool exact = R::HAS_AXES;
    for (int v = 0; v < R::STREAMS; ++v) {
        const u32 dtype = program.dtype(v, t);
        exact = exact
            && (R::AXES[v] == TENSOR || !dtype || dtype == (in_double ? FLOAT64 : FLOAT32));
    }
    return exact;
}

// Returns the bytes per element of all streams that have the tensor's shape.
template <class R>
i64 bytes_per_element(const Program<R>& program, i64 t) {
    i64 bytes = 0;
    for (int v = 0; v < R::STREAMS; ++v)
        if (R::AXES[v] == TENSOR) bytes += itemsize(program.dtype(v, t));
    return bytes;
}

// Returns the dtype of all streams of the tensor's shape if loops can read this dtype: the compute
// dtype, or a 16-bit dtype. Returns ABSENT otherwise.
template <class R>
u32 find_loop_dtype(const Program<R>& program, i64 t, bool in_double) {
    const u32 param_dtype = program.dtype(0, t);
    for (int v = 1; v < R::STREAMS; ++v) {
        const u32 dtype = program.dtype(v, t);
        if (R::AXES[v] == TENSOR && dtype && dtype != param_dtype) return ABSENT;
    }
    return in_double == (param_dtype == FLOAT64) ? param_dtype : ABSENT;
}

// Shape of a whole tensor, of which this rank may hold a shard. Decisions that depend on this shape
// alone are the same on all ranks.
struct GlobalShape {
    i64 matrices, rows, columns, sharded_axes;

    i64 matrix_size() const { return rows * columns; }
    bool is_unsharded() const { return !(sharded_axes & ~MATRIX); }
};

inline GlobalShape global_shape(const Table& table, i64 t) {
    const i64* const shape = table.shape + SHAPE_SIZE * t;
    if (!table.shards || !table.shards->by_tensor)
        return {shape[MATRICES], shape[ROWS], shape[COLUMNS], 0};
    const Shard& shard = table.shards->by_tensor[t];
    const i64 matrices = shard.elements / max(1, shard.rows * shard.columns);
    return {matrices, shard.rows, shard.columns, shard.sharded_axes};
}

// Chooses the tiling strategy of a tensor with row or column values. All ranks choose the same one.
// `exact`: row and column states are stored in the compute dtype.
template <class R>
TensorPlan::Strategy choose_strategy(const GlobalShape& shape, bool exact) {
    const bool is_tall = shape.rows >= shape.columns;
    const bool has_many_values = shape.matrices * (shape.rows + shape.columns)
        > (exact ? MANY_AXIS_VALUES : 2 * MANY_AXIS_VALUES);
    // A tile can have whole rows if columns are not sharded, and whole columns if rows are not.
    const int whole_axis_bit = (is_tall ? COLUMN : ROW) & ~MATRIX;
    const i64 max_whole_matrix =
        has_many_values && shape.matrices > 1 ? MAX_WHOLE_MATRIX_OF_MANY : MAX_WHOLE_MATRIX;
    TensorPlan::Strategy strategy = TensorPlan::SPLIT;
    if (shape.is_unsharded() && shape.matrix_size() && shape.matrix_size() <= max_whole_matrix)
        strategy = TensorPlan::WHOLE_MATRICES;
    else if (!has_many_values || !shape.matrix_size() || shape.sharded_axes & whole_axis_bit)
        return strategy;
    else if (is_tall && shape.columns <= LONG_ROW_TILE) strategy = TensorPlan::WHOLE_ROWS;
    else if (!is_tall && shape.rows <= MAX_WHOLE_COLUMN) strategy = TensorPlan::WHOLE_COLUMNS;
    if (strategy != TensorPlan::SPLIT && exact) // the EXACT strategies have the same order
        strategy = TensorPlan::Strategy(strategy + TensorPlan::EXACT_MATRICES);
    return R::PASS_COUNTS[strategy] ? strategy : TensorPlan::SPLIT;
}

// [strategy]: the axes whose values a tile can compute by itself.
constexpr int COMPLETE_AXES[] = {
    set(TENSOR, ROW, COLUMN, MATRIX), set(TENSOR, ROW), set(TENSOR, COLUMN),
    set(TENSOR, ROW, COLUMN, MATRIX), set(TENSOR, ROW), set(TENSOR, COLUMN), set(TENSOR)};

// Plans tiles of one or more whole matrices.
inline void plan_whole_matrices(TensorPlan& plan, i64 short_row_tile) {
    const bool is_small = plan.matrix_size() <= MAX_WHOLE_MATRIX;
    plan.by_rows = plan.columns >= LONG_ROW && 2 * plan.matrix_size() >= SHORT_ROW_TILE && is_small;
    plan.tile_elements = plan.by_rows ? LONG_ROW_TILE : short_row_tile;
    plan.tile_height = plan.by_rows ? 1 : max(1, short_row_tile / max(1, plan.matrix_size()));
    // A matrix value has one number per matrix: tiles begin at a cache line of these numbers.
    if (plan.tile_height > CACHE_LINE)
        plan.tile_height = plan.tile_height / CACHE_LINE * CACHE_LINE;
    plan.tile_elements = max(plan.tile_elements, plan.tile_height * plan.matrix_size());
    plan.block_count = (plan.matrices * plan.matrix_size() + BLOCK_ELEMENTS - 1) / BLOCK_ELEMENTS;
}

// Plans tiles of whole columns.
inline void plan_whole_columns(TensorPlan& plan, bool in_place) {
    plan.tile_height = max(1, plan.rows), plan.band_count = 1;
    plan.tile_width = in_place ? CHUNK_COLUMNS : max(plan.tile_elements / plan.tile_height, STRIP);
    plan.tile_elements = in_place ? CHUNK_COLUMNS : plan.tile_width * plan.tile_height;
}

// Plans bands of rows and chunks of columns of each matrix. If steps suspend, there is less room
// for column sums: all tensors wait at the same time, each with its sums. `in_place`: no stream
// goes through a buffer, and a pass reads every element once. Then a tile may be larger than the
// caches, and tiles of whole columns read long pieces of rows.
inline void plan_bands_and_chunks(TensorPlan& plan, bool suspends, bool in_place) {
    plan.by_rows = plan.columns >= LONG_ROW;
    plan.tile_elements = !plan.by_rows ? plan.short_row_tile()
        : plan.exceeds_cache ? UNCACHED_TILE : LONG_ROW_TILE;
    plan.tile_height =
        max(1, min(plan.by_rows ? SUMMED_ROWS : plan.tile_elements,
                   plan.tile_elements / max(1, plan.columns)));
    // If no stream is buffered, one tile has all rows whose sums are added to doubles together.
    const bool fits_one_tile =
        in_place && plan.by_rows && plan.columns <= plan.tile_elements && !plan.exceeds_cache;
    if (fits_one_tile) plan.tile_height = SUMMED_ROWS / plan.tile_height * plan.tile_height;
    const i64 bands_by_memory =
        (suspends ? COLUMN_SUM_BYTES / 8 : COLUMN_SUM_BYTES)
        / (i64(sizeof(double)) * max(1, plan.columns));
    const i64 bands_by_size = min(plan.matrix_size() / BAND_ELEMENTS, MAX_BANDS);
    plan.band_count = max(1, min(bands_by_size, min(bands_by_memory, plan.rows)));
    plan.chunk_count = max(1, (plan.columns + CHUNK_COLUMNS - 1) / CHUNK_COLUMNS);
    plan.tile_width = plan.tile_elements;
    if (plan.has_whole_columns()) plan_whole_columns(plan, in_place);
    plan.block_count = plan.matrix_size() ? plan.matrices * plan.band_count * plan.chunk_count : 0;
}

// Tells whether each pass reads an element at most once, and stores all elements that it writes.
// Returns false for a rule that draws random numbers and has row or column values: the numbers of a
// tile go through a buffer, which has no room for a tile that exceeds the caches.
template <class R>
constexpr bool reads_elements_once(TensorPlan::Strategy strategy) {
    for (int p = 0; p < R::PASS_COUNTS[strategy]; ++p) {
        const Pass& pass = R::PASSES[strategy][p];
        int loop_count = 0;
        for (int k = 0; k < R::STEP_COUNT; ++k) {
            const Step& step = R::STEPS[k];
            if (!(pass.tile_steps >> k & 1)) continue;
            if (step.axes != TENSOR || step.kind != Step::LOOP) continue;
            if (step.written_values & element_streams<R>() & ~pass.stored_values) return false;
            if (++loop_count > 1) return false;
        }
    }
    return !has_max<R>() && !(R::HAS_AXES && has_draw<R>());
}

template <class R>
TensorPlan make_plan(const Program<R>& program, i64 t) {
    const i64* const shape = program.table.shape + SHAPE_SIZE * t;
    TensorPlan plan{};
    plan.tensor = t;
    plan.in_double = program.in_double(t);
    plan.matrices = shape[MATRICES], plan.rows = shape[ROWS], plan.columns = shape[COLUMNS];
    plan.loop_dtype = find_loop_dtype(program, t, plan.in_double);
    if constexpr (R::HAS_AXES) {
        const GlobalShape shape_on_all_ranks = global_shape(program.table, t);
        const bool exact = has_exact_axis_states(program, t, plan.in_double);
        plan.strategy = choose_strategy<R>(shape_on_all_ranks, exact);
        plan.complete_axes = COMPLETE_AXES[plan.strategy];
        plan.has_whole_matrices = plan.is_complete(MATRIX);
        const bool has_wide_rows = plan.columns >= WIDE_ROW && !plan.has_whole_columns();
        const i64 bytes = program.table.elements[t] * bytes_per_element(program, t);
        plan.exceeds_cache = has_wide_rows && plan.loop_dtype && bytes > CACHE_BYTES;
        constexpr bool split_reads_once = reads_elements_once<R>(TensorPlan::SPLIT);
        constexpr bool columns_read_once = reads_elements_once<R>(TensorPlan::EXACT_COLUMNS);
        const bool reads_once = plan.strategy == TensorPlan::SPLIT
            ? split_reads_once : columns_read_once && plan.strategy == TensorPlan::EXACT_COLUMNS;
        if (!plan.has_whole_matrices)
            plan_bands_and_chunks(
                plan, program.table.shards != nullptr, plan.loop_dtype && reads_once);
        if (plan.has_whole_matrices) plan_whole_matrices(plan, plan.short_row_tile());
    } else { // each element is a matrix
        plan.matrices = program.table.elements[t], plan.rows = plan.columns = 1;
        plan.complete_axes = COMPLETE_AXES[TensorPlan::WHOLE_MATRICES];
        plan.has_whole_matrices = true;
        constexpr bool reads_once = reads_elements_once<R>(TensorPlan::WHOLE_MATRICES);
        const i64 tile_elements = HAS_CODES<R> ? CODED_TILE
            : plan.loop_dtype && reads_once ? IN_PLACE_TILE : plan.short_row_tile();
        plan_whole_matrices(plan, tile_elements);
    }
    return plan;
}

}  // namespace optgen
