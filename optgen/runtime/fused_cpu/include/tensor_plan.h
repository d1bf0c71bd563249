// The plan of one tensor: the sizes of tiles, blocks, bands and chunks.
#include "optgen/runtime/fused_cpu/include/rule_tables.h"

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
constexpr i64 CONVERTED_TILE = 1024, PREFETCH_BYTES = 4096;
// Elements of a tile of a rule with codes of 8 bits: whole blocks. Longer tiles are slower, because
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

constexpr i64 rounded_up(i64 n, i64 unit) { return (n + unit - 1) / unit * unit; }
constexpr i64 min(i64 a, i64 b) { return a < b ? a : b; }
constexpr i64 max(i64 a, i64 b) { return a > b ? a : b; }

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

}  // namespace optgen
