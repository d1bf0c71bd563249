// One pass over one block of a tensor, tile by tile.
#include "optgen/runtime/fused_cpu/phases.h"

namespace optgen {

template <class R, class C>
struct Part {
    static constexpr int STREAMS = R::STREAMS, VALUES = R::VALUES, NUMBERS = R::NUMBERS;

    const Tensor<R, C>& tensor;
    const Job& job;
    const Pass& pass;
    const bool unscales;
    const Given<R> given;
    double* const partials; // of this block
    C* const memory;
    const i64 room;
    u64 touched = 0, written = 0;
    i64 band = 0, chunk = 0;
    const C* ahead[STREAMS]; // where what follows the tile lies in memory
    int coming = 0;          // of these, those that nobody has fetched yet

    // How many numbers of the type computed in a thread needs.
    static i64 scratch(const Job& job) { return (2 * VALUES + 2) * room_of(job); }

    static i64 room_of(const Job& job) {
        return rounded_up(most(SPAN, job.local ? job.unit * job.size() : 0) + PADDING, 64);
    }

    Part(
        const Tensor<R, C>& given_tensor, const Pass& given_pass, bool first, i64 block, C* scratch)
        : tensor(given_tensor), job(tensor.job), pass(given_pass),
          unscales(first && tensor.program.table.grad_scale), given(tensor.given()),
          partials(tensor.partials + block * NUMBERS), memory(scratch), room(room_of(job)) {
        for (int k = 0; k < R::STEP_COUNT; ++k) {
            if (!(pass.steps >> k & 1)) continue;
            touched |= R::STEPS[k].reads | R::STEPS[k].writes;
            if (R::STEPS[k].kind == Step::LOOP) written |= R::STEPS[k].writes;
        }
        for (int n = 0; first && n < NUMBERS; ++n) partials[n] = 0;
        if (unscales) touched |= 1 << 1;
    }

    C* buffer(int v) const { return memory + v * room; }
    C* wide_buffer(int v) const { return memory + (VALUES + v) * room; }
    double* sums() const { return reinterpret_cast<double*>(memory + 2 * VALUES * room); }

    void run(i64 block) {
        if (job.local) local(block);
        else if constexpr (R::HAS_AXES) shared(block);
    }

    // Whole matrices.
    void local(i64 block) {
        const i64 size = job.size(), all = rounded_up(job.batch, job.unit) / job.unit;
        const i64 first = all * block / job.blocks * job.unit;
        const i64 end = least(job.batch, all * (block + 1) / job.blocks * job.unit);
        for (i64 m = first; m < end; m += job.unit) {
            const i64 n = least(job.unit, end - m);
            tile({m, m * job.rows, m * job.columns, m * size, n, n * job.rows, n * job.columns,
                  n * size});
        }
    }

    // Some rows of a matrix: a few short ones at once, or a long one part by part.
    void shared(i64 block) {
        const i64 matrix = block / (job.bands * job.chunks);
        band = block / job.chunks % job.bands, chunk = block % job.chunks;
        const i64 first = job.rows * band / job.bands, last = job.rows * (band + 1) / job.bands;
        const i64 left = chunk * CHUNK, right = least(job.columns, left + CHUNK);
        begin_sums(matrix, first, last, left, right);
        const i64 unit = 2 * job.columns <= SPAN ? SPAN / job.columns : 1;
        for (i64 r = first; r < last; r += unit) {
            const i64 rows = least(unit, last - r), row = matrix * job.rows + r;
            for (i64 c = left; c < right; c += SPAN) {
                const i64 columns = least(SPAN, right - c);
                tile({matrix, row, matrix * job.columns + c, row * job.columns + c, 1, rows,
                      columns, rows * columns});
            }
        }
    }

    void begin_sums(i64 matrix, i64 first, i64 last, i64 left, i64 right) {
        for (int k = 0; k < R::STEP_COUNT; ++k) {
            if (!(pass.steps >> k & 1) || R::STEPS[k].kind == Step::LOOP) continue;
            const int n = R::STEPS[k].number;
            if (R::STEPS[k].axes == ROW)
                for (i64 r = first; r < last; ++r) row_sums(n)[matrix * job.rows + r] = 0;
            if (R::STEPS[k].axes == COLUMN)
                for (i64 c = left; c < right; ++c) column_sums(n)[matrix * job.columns + c] = 0;
        }
    }

    double* row_sums(int n) const {
        return tensor.row_sums + (n * job.chunks + chunk) * job.batch * job.rows;
    }
    double* column_sums(int n) const {
        return tensor.column_sums + (n * job.bands + band) * job.batch * job.columns;
    }

    APART void tile(const Tile& tile) {
        C* at[VALUES];
        for (int v = 0; v < VALUES; ++v) at[v] = touched >> v & 1 ? open(v, tile) : nullptr;
        coming = 0;
        for (int v = STREAMS - 1; v >= 0; --v)
            if (R::AXES[v] == TENSOR && at[v] && at[v] != buffer(v))
                ahead[coming++] = at[v] + tile.elements;
        if (unscales) unscale(tile, at[1]);
        for (int k = 0; k < R::STEP_COUNT; ++k) {
            if (!(pass.steps >> k & 1)) continue;
            const Step& step = R::STEPS[k];
            if (step.kind == Step::SUM) reduce<Sum>(step, tile, at);
            else if (step.kind == Step::LOOP) loop(k, step, tile, at);
            else if constexpr (has_largest<R>()) reduce<Largest>(step, tile, at);
        }
        for (int v = 0; v < STREAMS; ++v)
            if ((pass.stores & written) >> v & 1 && at[v] == buffer(v))
                write(tensor.type(v), at[v], tensor.address(v), tile.first(R::AXES[v]),
                      tile.count(R::AXES[v]));
    }

    // Where a value of a tile is read and written: in the tensor itself if that can be.
    C* open(int v, const Tile& tile) const {
        const int axes = R::AXES[v];
        if (!job.local && axes != TENSOR) return tensor.whole[v] + tile.first(axes);
        if (v >= STREAMS) return buffer(v);
        const u32 type = tensor.type(v);
        if (type == ABSENT) return nullptr;
        const bool kept = !(written >> v & 1) || pass.stores >> v & 1;
        // What is spread is read beyond its end.
        if (type == TYPE<C> && kept && (axes == TENSOR || job.size() == 1))
            return static_cast<C*>(tensor.address(v)) + tile.first(axes);
        read(type, tensor.address(v), tile.first(axes), tile.count(axes), buffer(v));
        return buffer(v);
    }

    // Gradients are unscaled in place, as torch's fused kernels do.
    void unscale(const Tile& tile, C* grads) const {
        const C scale = C(*tensor.program.table.grad_scale);
        for (i64 i = 0; i < tile.elements; ++i) grads[i] /= scale;
        if (grads == buffer(1))
            write(tensor.type(1), grads, tensor.address(1), tile.element, tile.elements);
    }

    // A value of fewer axes than the loop is one number for all of it, or spread.
    void loop(int k, const Step& step, const Tile& tile, C* const* at) const {
        const bool wide = job.local || tile.rows > 1;
        C* seen[VALUES];
        for (u64 values = step.reads | step.writes; values; values &= values - 1) {
            const int v = __builtin_ctzll(values);
            const bool spread = wide && R::AXES[v] != step.axes;
            seen[v] = spread ? widened(v, step.axes, tile, at[v]) : at[v];
        }
        if (!R::HAS_AXES || !wide) R::template run<C, false>(k, given, tile.count(step.axes), seen);
        else R::template run<C, true>(k, given, tile.count(step.axes), seen);
    }

    C* widened(int v, int axes, const Tile& tile, C* from) const {
        const i64 rows = tile.rows / tile.matrices, columns = tile.columns / tile.matrices;
        const i64 n = tile.count(axes) / tile.count(R::AXES[v]);
        if (n == 1) return from;
        if (R::AXES[v] == COLUMN) repeat(from, tile.matrices, rows, columns, wide_buffer(v));
        else spread(from, tile.count(R::AXES[v]), n, wide_buffer(v));
        return wide_buffer(v);
    }

    const C* follow(const C* x) { return coming ? ahead[--coming] : x; }

    template <class Join>
    void reduce(const Step& step, const Tile& tile, C** at) {
        const int from = __builtin_ctzll(step.reads);
        if (step.axes == NONE) {
            double& sum = partials[step.number];
            const i64 n = tile.count(R::AXES[from]);
            sum = Join::join(sum, total<Join>(at[from], n, follow(at[from])));
        } else if constexpr (R::HAS_AXES) {
            if (!job.local) reduce_shared<Join>(step, tile, at[from]);
            else reduce_local<Join>(step, tile, at[from], at[__builtin_ctzll(step.writes)]);
        }
    }

    template <class Join>
    void reduce_local(const Step& step, const Tile& tile, C* x, C*& to) const {
        const i64 n = tile.count(step.axes);
        const i64 each = tile.count(R::AXES[__builtin_ctzll(step.reads)]) / n;
        if (each == 1) to = x;
        else if (step.axes == COLUMN)
            column_totals<Join>(x, tile.matrices, job.rows, job.columns, to, sums());
        else row_totals<Join>(x, n, each, to);
    }

    template <class Join>
    void reduce_shared(const Step& step, const Tile& tile, const C* x) {
        if (step.axes == COLUMN)
            return join_rows<Join>(
                x, tile.rows, tile.columns, column_sums(step.number) + tile.column);
        double* const to = row_sums(step.number) + tile.row;
        if (tile.rows > 1) return row_totals<Join>(x, tile.rows, tile.columns, to);
        *to = Join::join(*to, total<Join>(x, tile.columns, follow(x)));
    }
};

}  // namespace optgen
