// Gather and scatter between pages and packed bytes.
//
// A launch is a list of tiles: a tile is up to TILE_BYTES of the packed bytes of one segment of one block. A team of
// threads takes every so many-th tile, finds out whose it is, and copies it. Nothing is shared between teams, so
// there is no barrier and no order. A page's bytes are touched by vectors that lie inside one of its runs, which is
// why padding and other layers' bytes stay as they are.

namespace tender {

template <class V>
__device__ V load(u64 address) {
    return __ldcs(reinterpret_cast<const V*>(address));
}

template <class V>
__device__ void store(u64 address, V value) {
    __stcs(reinterpret_cast<V*>(address), value);
}

// One segment of one block.
struct Box {
    const Segment* segment;
    u64 page;   // address of its first byte in this block
    u64 packed; // address of its first packed byte
};

// How far the byte at `at` of a box's content lies from its first one, on the page.
__device__ inline u64 strided(const Segment& segment, u32 at) {
    u32 run = at / segment.run_bytes;
    u64 distance = at - run * segment.run_bytes;
#pragma unroll 1
    for (u32 i = 0; i < segment.n_dims; i++) {
        // A count fits 32 bits, as the content does.
        u32 count = static_cast<u32>(segment.dims[i].count);
        u32 outer = run / count;
        distance += (run - outer * count) * segment.dims[i].stride_bytes;
        run = outer;
    }
    return distance;
}

// Copies a stretch that is one on both sides, in whole vectors. A thread loads four before it stores the first.
template <class V, u32 TEAM>
__device__ void copy_run(u64 from, u64 to, u32 bytes) {
    constexpr u32 IN_FLIGHT = 4;
    constexpr u32 STEP = TEAM * sizeof(V);
#pragma unroll 1
    for (u32 at = threadIdx.x % TEAM * sizeof(V); at < bytes; at += IN_FLIGHT * STEP) {
        u64 from_here = from + at;
        u64 to_here = to + at;
        V value[IN_FLIGHT];
#pragma unroll
        for (u32 i = 0; i < IN_FLIGHT; i++) {
            if (at + i * STEP < bytes) {
                value[i] = load<V>(from_here + i * STEP);
            }
        }
#pragma unroll
        for (u32 i = 0; i < IN_FLIGHT; i++) {
            if (at + i * STEP < bytes) {
                store<V>(to_here + i * STEP, value[i]);
            }
        }
    }
}

// Copies the bytes from `first` to `last` of a box of many runs, in whole vectors. Two in flight: the arithmetic of
// strides needs the registers.
template <class V, u32 TEAM, bool GATHER>
__device__ void copy_runs(const Box& box, u32 first, u32 last) {
    constexpr u32 STEP = TEAM * sizeof(V);
#pragma unroll 1
    for (u32 at = first + threadIdx.x % TEAM * sizeof(V); at < last; at += 2 * STEP) {
        bool both = at + STEP < last;
        u64 packed = box.packed + at;
        u64 page = box.page + strided(*box.segment, at);
        u64 other = both ? box.page + strided(*box.segment, at + STEP) : 0;
        V value = load<V>(GATHER ? page : packed);
        V next;
        if (both) {
            next = load<V>(GATHER ? other : packed + STEP);
        }
        store<V>(GATHER ? packed : page, value);
        if (both) {
            store<V>(GATHER ? packed + STEP : other, next);
        }
    }
}

// Runs of this size keep a team busy one after another; smaller ones are better looked up vector by vector.
enum : u32 { LONG_RUN_BYTES = 2048 };

template <class V, u32 TEAM, bool GATHER>
__device__ void copy_whole(const Box& box, u32 first, u32 last) {
    u32 run_bytes = box.segment->run_bytes;
    if (box.segment->n_dims != 0 && run_bytes < LONG_RUN_BYTES) {
        copy_runs<V, TEAM, GATHER>(box, first, last);
        return;
    }
#pragma unroll 1
    while (first < last) {
        u32 end = first - first % run_bytes + run_bytes;
        end = end < last ? end : last;
        u64 page = box.page + strided(*box.segment, first);
        u64 packed = box.packed + first;
        copy_run<V, TEAM>(GATHER ? page : packed, GATHER ? packed : page, end - first);
        first = end;
    }
}

template <u32 TEAM, bool GATHER>
__device__ void copy_tile(const Segment* segments, const Job& job, const Move* moves, u64 tile) {
    // A job has fewer than 2^32 tiles: 64-bit division would cost as much as moving a vector.
    u32 in_job = static_cast<u32>(tile - job.first_tile);
    u32 tiles_per_block = static_cast<u32>(job.tiles_per_block);
    u32 nth = in_job / tiles_per_block;
    u32 in_block = in_job - nth * tiles_per_block;
    const Segment* mine = segments + job.first_segment;
    mine += job.tiles_per_segment ? in_block / job.tiles_per_segment
                                  : find_last<Segment, &Segment::first_tile>(mine, job.segments, in_block);
    Move move = moves[job.first_move + nth];

    // Where the segment lies among the packed bytes, and which of its bytes are this tile's and at hand.
    u64 offset = move.slot * job.block_bytes + mine->packed_offset;
    u64 first = (in_block - mine->first_tile) * TILE_BYTES;
    u64 last = first + TILE_BYTES;
    last = last < mine->content_bytes ? last : mine->content_bytes;
    if (offset + last <= job.start || offset + first >= job.end) {
        return;
    }
    u32 from = static_cast<u32>(offset + first < job.start ? job.start - offset : first);
    u32 to = static_cast<u32>(offset + last > job.end ? job.end - offset : last);

    Box box = {mine, mine->base + move.block * mine->block_stride_bytes, job.packed + offset};
    u32 vector = static_cast<u32>(job.vector_bytes);
    vector = vector < mine->vector_bytes ? vector : mine->vector_bytes;
    // Whole vectors, and single bytes where the piece was cut inside of one.
    u32 whole_from = (from + vector - 1) & ~(vector - 1);
    u32 whole_to = to & ~(vector - 1);
    if (whole_from > whole_to) {
        whole_from = whole_to = to;
    }
    switch (vector) {
    case 16: copy_whole<uint4, TEAM, GATHER>(box, whole_from, whole_to); break;
    case 8: copy_whole<uint2, TEAM, GATHER>(box, whole_from, whole_to); break;
    case 4: copy_whole<u32, TEAM, GATHER>(box, whole_from, whole_to); break;
    default: copy_whole<u8, TEAM, GATHER>(box, whole_from, whole_to); break;
    }
    if (from < whole_from || whole_to < to) {
        // The threads of the team share head and tail: 15 bytes each at most.
        u32 head = whole_from - from;
        u32 bytes = head + (to - whole_to);
#pragma unroll 1
        for (u32 i = threadIdx.x % TEAM; i < bytes; i += TEAM) {
            u32 at = i < head ? from + i : whole_to + (i - head);
            u64 page = box.page + strided(*mine, at);
            u64 packed = box.packed + at;
            store<u8>(GATHER ? packed : page, load<u8>(GATHER ? page : packed));
        }
    }
}

template <u32 TEAM, bool GATHER>
__device__ void copy_tiles(u64 segments, u64 batch, u64 n_jobs, u64 n_tiles) {
    const Job* jobs = reinterpret_cast<const Job*>(batch);
    const Move* moves = reinterpret_cast<const Move*>(jobs + n_jobs);
    u64 threads = static_cast<u64>(gridDim.x) * blockDim.x;
    u64 thread = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (u64 tile = thread / TEAM; tile < n_tiles; tile += threads / TEAM) {
        const Job& job = jobs[find_last<Job, &Job::first_tile>(jobs, n_jobs, tile)];
        copy_tile<TEAM, GATHER>(reinterpret_cast<const Segment*>(segments), job, moves, tile);
    }
}

} // namespace tender

// A warp for each tile.
extern "C" __global__ void __launch_bounds__(256) tender_gather(u64 segments, u64 batch, u64 n_jobs, u64 n_tiles) {
    tender::copy_tiles<32, true>(segments, batch, n_jobs, n_tiles);
}

extern "C" __global__ void __launch_bounds__(256) tender_scatter(u64 segments, u64 batch, u64 n_jobs, u64 n_tiles) {
    tender::copy_tiles<32, false>(segments, batch, n_jobs, n_tiles);
}

// A quarter of a warp for each tile: for segments so small that a warp would mostly idle.
extern "C" __global__ void __launch_bounds__(256) tender_gather_small(u64 segments, u64 batch, u64 n_jobs, u64 n_tiles) {
    tender::copy_tiles<8, true>(segments, batch, n_jobs, n_tiles);
}

extern "C" __global__ void __launch_bounds__(256) tender_scatter_small(u64 segments, u64 batch, u64 n_jobs, u64 n_tiles) {
    tender::copy_tiles<8, false>(segments, batch, n_jobs, n_tiles);
}
