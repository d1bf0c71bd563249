// Makes the plan of a tensor: chooses the tiling strategy, and the sizes of tiles.
#include "optgen/runtime/fused_cpu/include/tensor_plan.h"
#include "optgen/runtime/fused_cpu/include/block_codes.h"

namespace optgen {

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
