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

// Copies the bytes from `first` to `last` of a box, both multiples of the vector's size. A thread loads IN_FLIGHT
// vectors before it stores the first.
template <class V, u32 TEAM, bool GATHER, bool STRIDED, u32 IN_FLIGHT>
__device__ void copy_vectors(const Box& box, u32 first, u32 last) {
    constexpr u32 SIZE = sizeof(V);
    u32 lane = threadIdx.x % TEAM;
#pragma unroll 1
    for (u32 at = first + lane * SIZE; at < last; at += IN_FLIGHT * TEAM * SIZE) {
        u64 page[IN_FLIGHT];
        V value[IN_FLIGHT];
#pragma unroll
        for (u32 i = 0; i < IN_FLIGHT; i++) {
            u32 here = at + i * TEAM * SIZE;
            if (here < last) {
                page[i] = box.page + (STRIDED ? strided(*box.segment, here) : here);
                value[i] = load<V>(GATHER ? page[i] : box.packed + here);
            }
        }
#pragma unroll
        for (u32 i = 0; i < IN_FLIGHT; i++) {
            u32 here = at + i * TEAM * SIZE;
            if (here < last) {
                store<V>(GATHER ? box.packed + here : page[i], value[i]);
            }
        }
    }
}

// One run, or many: the arithmetic of strides takes registers, and with them loads in flight.
template <class V, u32 TEAM, bool GATHER>
__device__ void copy_whole(const Box& box, u32 first, u32 last) {
    if (box.segment->n_dims == 0) {
        copy_vectors<V, TEAM, GATHER, false, 4>(box, first, last);
    } else {
        copy_vectors<V, TEAM, GATHER, true, 2>(box, first, last);
    }
}

// Copies the bytes from `first` to `last` of a box: whole vectors, and single bytes where the piece was cut.
template <class V, u32 TEAM, bool GATHER>
__device__ void copy_span(const Box& box, u32 first, u32 last) {
    constexpr u32 SIZE = sizeof(V);
    u32 inner_first = (first + SIZE - 1) / SIZE * SIZE;
    u32 inner_last = last / SIZE * SIZE;
    if (inner_first > inner_last) {
        // All of it lies inside one vector.
        inner_first = inner_last = last;
    }
    copy_whole<V, TEAM, GATHER>(box, inner_first, inner_last);
    if (first < inner_first) {
        copy_vectors<u8, TEAM, GATHER, true, 1>(box, first, inner_first);
    }
    if (inner_last < last) {
        copy_vectors<u8, TEAM, GATHER, true, 1>(box, inner_last, last);
    }
}

template <u32 TEAM, bool GATHER>
__device__ void copy_tile(const Segment* segments, const Job& job, const Move* moves, u64 tile) {
    u64 in_job = tile - job.first_tile;
    // 64-bit division costs as much as moving a vector, and is hardly ever needed.
    u64 nth = (in_job | job.tiles_per_block) >> 32 ? in_job / job.tiles_per_block
                                                   : static_cast<u32>(in_job) / static_cast<u32>(job.tiles_per_block);
    u64 in_block = in_job - nth * job.tiles_per_block;
    const Segment* mine = segments + job.first_segment;
    mine += job.tiles_per_segment && !(in_block >> 32) ? static_cast<u32>(in_block) / job.tiles_per_segment
                                : find_last<Segment, &Segment::first_tile>(mine, job.segments, in_block);
    Move move = moves[job.first_move + nth];

    // Where the segment lies among the packed bytes, and which of them are there.
    u64 offset = move.slot * job.block_bytes + mine->packed_offset;
    u64 first = (in_block - mine->first_tile) * TILE_BYTES;
    u64 last = first + TILE_BYTES;
    last = last < mine->content_bytes ? last : mine->content_bytes;
    if (offset + last <= job.start || offset + first >= job.end) {
        return;
    }
    first = offset + first < job.start ? job.start - offset : first;
    last = offset + last > job.end ? job.end - offset : last;

    Box box = {mine, mine->base + move.block * mine->block_stride_bytes, job.packed + offset};
    u32 from = static_cast<u32>(first), to = static_cast<u32>(last);
    u32 vector = static_cast<u32>(job.vector_bytes);
    vector = vector < mine->vector_bytes ? vector : mine->vector_bytes;
    switch (vector) {
    case 16: copy_span<uint4, TEAM, GATHER>(box, from, to); break;
    case 8: copy_span<uint2, TEAM, GATHER>(box, from, to); break;
    case 4: copy_span<u32, TEAM, GATHER>(box, from, to); break;
    default: copy_whole<u8, TEAM, GATHER>(box, from, to); break;
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
