// The rule on the rows that sparse gradients touch: values of one row are added up, and the row is
// updated once. A row is one thread's, and its values have an order, so the result has the same bits
// for any number of threads.
#include "optgen/runtime/fused_cpu/include/adds.h"

namespace optgen {

// A value of a gradient: its row, and its place among the values.
struct Value {
    i64 row, place;
};

// Sorts values by row, keeping the order of those with one row: by some bits of the row at a time,
// the lowest first. Returns which of the two arrays holds the result.
inline Value* sorted(Value* values, Value* other, i64 n, i64 rows) {
    constexpr int BITS = 11;
    i64 begin[1 << BITS];
    for (int shift = 0; (rows - 1) >> shift > 0; shift += BITS) {
        auto digit = [shift](const Value& v) { return (v.row >> shift) & ((1 << BITS) - 1); };
        for (i64& each : begin) each = 0;
        for (i64 i = 0; i < n; ++i) ++begin[digit(values[i])];
        i64 sum = 0;
        for (i64& each : begin) {
            const i64 count = each;
            each = sum;
            sum += count;
        }
        for (i64 i = 0; i < n; ++i) other[begin[digit(values[i])]++] = values[i];
        Value* const swapped = values;
        values = other;
        other = swapped;
    }
    return values;
}

// The touched rows of all tensors.
struct Touched {
    Buffer<Value> values; // of all tensors, each tensor's sorted by row
    Buffer<i64> first;    // of each touched row: its first value; the end of all values
    Buffer<i64> start;    // of each tensor: its first touched row; the end of all rows
    i64 wrong = -1;       // a tensor with an index that is no row of it

    Touched(const Table& table, const Rows& rows)
        : values(total(table, rows) + 1), first(total(table, rows) + 1), start(table.tensors + 1) {
        i64 at = 0, row = 0;
        for (i64 t = 0; t < table.tensors && wrong < 0; ++t) {
            start[t] = row;
            if (!take(rows.indices[t], rows.values[t], rows.rows[t], at)) wrong = t;
            for (const i64 end = at + rows.values[t]; at < end; ++at)
                if (at == end - rows.values[t] || values[at].row != values[at - 1].row)
                    first[row++] = at;
        }
        start[table.tensors] = row;
        first[row] = at;
    }

    static i64 total(const Table& table, const Rows& rows) {
        i64 sum = 0;
        for (i64 t = 0; t < table.tensors; ++t) sum += rows.values[t];
        return sum;
    }

    // Lays one tensor's values down at `at`; false if an index is no row.
    bool take(const i64* indices, i64 n, i64 rows, i64 at) {
        Value* const target = values.data + at;
        bool in_order = true;
        for (i64 i = 0; i < n; ++i) {
            if (indices[i] < 0 || indices[i] >= rows) return false;
            in_order = in_order && (i == 0 || indices[i] >= indices[i - 1]);
            target[i] = {indices[i], i};
        }
        if (in_order) return true;
        const Buffer<Value> other(n);
        const Value* const result = sorted(target, other.data, n, rows);
        if (result != target) __builtin_memcpy(target, result, u64(n) * sizeof(Value));
        return true;
    }
};

template <class S, class C>
void add(const void* stream, i64 first, i64 n, C* __restrict to) {
    const S* __restrict from = static_cast<const S*>(stream) + first;
    for (i64 i = 0; i < n; ++i) to[i] += load<S, C>(from[i]);
}

template <class C>
void add(u32 type, const void* stream, i64 first, i64 n, C* to) {
    if (type == FLOAT32) add<float>(stream, first, n, to);
    else if (type == FLOAT64) add<double>(stream, first, n, to);
    else if (type == BFLOAT16) add<bfloat16>(stream, first, n, to);
    else add<float16>(stream, first, n, to);
}

// Rows of fewer elements are updated several at once.
constexpr i64 NARROW = 16;

template <class R>
struct RowKernel {
    static constexpr int STREAMS = R::STREAMS;

    const Kernel<R>& kernel;
    const Rows& rows;
    const Touched& touched;
    const Threads& threads;

    i64 width(i64 t) const {
        return rows.values[t] ? kernel.table.elements[t] / rows.values[t] : 0;
    }

    u32 type(i64 t, int stream) const { return type_of(kernel.table.types[t], stream); }

    // Elements at, at + 1, ... of the sum of a row's values.
    template <class C>
    void sum(i64 t, i64 row, i64 at, i64 n, C* to) const {
        const void* const values = kernel.address(1, t);
        const i64 wide = width(t);
        i64 v = touched.first[row];
        read(type(t, 1), values, touched.values[v].place * wide + at, n, to);
        while (++v < touched.first[row + 1])
            add(type(t, 1), values, touched.values[v].place * wide + at, n, to);
        if (kernel.table.grad_scale)
            for (i64 i = 0; i < n; ++i) to[i] /= C(*kernel.table.grad_scale);
    }

    // Updates touched rows where they lie, piece by piece.
    template <class C>
    void in_place(i64 t, i64 low, i64 high) const {
        C grads[TILE];
        C* streams[STREAMS];
        const i64 wide = width(t);
        for (; low < high; ++low) {
            const i64 first = touched.values[touched.first[low]].row * wide;
            for (i64 at = 0; at < wide; at += TILE) {
                const i64 n = wide - at < TILE ? wide - at : TILE;
                for (int s = 0; s < STREAMS; ++s) {
                    C* const rows = static_cast<C*>(kernel.address(s, t));
                    streams[s] = type(t, s) ? rows + first + at : nullptr;
                }
                sum(t, low, at, n, streams[1] = grads);
                optgen::update<R>(
                    kernel.hypers(t), kernel.scalars(t), kernel.table.fresh[t], n, streams);
            }
        }
    }

    // Elements of a row to and from buffers.
    template <class C>
    void load(i64 t, i64 row, i64 at, i64 n, C* const* to, i64 offset) const {
        const i64 first = touched.values[touched.first[row]].row * width(t) + at;
        for (int s = 0; s < STREAMS; ++s)
            if (s != 1 && to[s]) read(type(t, s), kernel.address(s, t), first, n, to[s] + offset);
    }

    template <class C>
    void store(i64 t, i64 row, i64 at, i64 n, C* const* from, i64 offset) const {
        const i64 first = touched.values[touched.first[row]].row * width(t) + at;
        for (int s = 0; s < STREAMS; ++s)
            if (is_written<R>(s) && from[s])
                write(type(t, s), from[s] + offset, kernel.address(s, t), first, n);
    }

    // Updates touched rows in copies of the type computed in: several of narrow ones at once.
    template <class C>
    void in_copies(i64 t, i64 low, i64 high) const {
        C buffer[STREAMS][TILE];
        C* streams[STREAMS];
        for (int s = 0; s < STREAMS; ++s) streams[s] = type(t, s) ? buffer[s] : nullptr;
        const i64 wide = width(t), piece = wide < TILE ? wide : TILE, many = TILE / piece;
        for (; low < high; low += many) {
            const i64 count = high - low < many ? high - low : many;
            for (i64 at = 0; at < wide; at += piece) {
                const i64 n = wide - at < piece ? wide - at : piece;
                for (i64 i = 0; i < count; ++i) {
                    load(t, low + i, at, n, streams, i * n);
                    sum(t, low + i, at, n, buffer[1] + i * n);
                }
                optgen::update<R>(
                    kernel.hypers(t), kernel.scalars(t), kernel.table.fresh[t], count * n, streams);
                for (i64 i = 0; i < count; ++i) store(t, low + i, at, n, streams, i * n);
            }
        }
    }

    template <class C>
    void update(i64 t, i64 low, i64 high) const {
        bool direct = width(t) >= NARROW;
        for (int s = 0; s < STREAMS; ++s)
            direct = direct && (s == 1 || type(t, s) == TYPE<C> || type(t, s) == ABSENT);
        if (direct) in_place<C>(t, low, high);
        else in_copies<C>(t, low, high);
    }

    // The part of all touched rows that is one thread's, by their elements.
    void part(i64 id, i64 team) const {
        i64 all = 0, at = 0;
        for (i64 t = 0; t < kernel.table.tensors; ++t) all += elements(t);
        const i64 low = all * id / team, high = all * (id + 1) / team;
        for (i64 t = 0; t < kernel.table.tensors; at += elements(t++)) {
            const i64 wide = width(t), begin = touched.start[t], end = touched.start[t + 1];
            if (!wide) continue;
            const i64 first = begin + rows_within(low - at, wide);
            const i64 limit = begin + rows_within(high - at, wide), last = limit < end ? limit : end;
            if (first >= last) continue;
            if (kernel.in_double(t)) update<double>(t, first, last);
            else update<float>(t, first, last);
        }
    }

    i64 elements(i64 t) const { return (touched.start[t + 1] - touched.start[t]) * width(t); }

    // How many rows begin within so many elements.
    static i64 rows_within(i64 elements, i64 wide) {
        return elements > 0 ? (elements + wide - 1) / wide : 0;
    }

    static void work(void* at) {
        const RowKernel& rows = *static_cast<const RowKernel*>(at);
        rows.part(rows.threads.id(), rows.threads.team());
    }
};

// One step of all tensors of the table, whose gradients are sparse. Returns -1; or a tensor with an
// index that is no row of it, and then nothing was done.
template <class R>
i64 step_rows(const Table& table, const Rows& rows, const Threads& threads) {
    if constexpr (ADDS<R>) {
        AddKernel<R> unread{nullptr, table, rows, threads};
        if (unread.suits()) {
            const i64 wrong = unread.wrong();
            if (wrong >= 0) return wrong;
            const Kernel<R> kernel(table);
            AddKernel<R> region{&kernel, table, rows, threads};
            run_rows(region, threads, kernel.traffic);
            return -1;
        }
    }
    const Touched touched(table, rows);
    if (touched.wrong >= 0) return touched.wrong;
    const Kernel<R> kernel(table);
    RowKernel<R> region{kernel, rows, touched, threads};
    run_rows(region, threads, kernel.traffic);
    return -1;
}

}  // namespace optgen
