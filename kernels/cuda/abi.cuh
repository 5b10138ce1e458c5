// What the host hands to the kernels: tables of 64-bit words, written by kernels/src/cuda/abi.rs, which must agree
// with this file word for word. Addresses and distances have 64 bits throughout; what counts inside one segment of
// one block has 32, because the host cuts larger boxes.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

namespace tender {

enum : u32 {
    MAX_DIMS = 8,
    // Packed bytes that one team of threads moves at a time.
    TILE_BYTES = 4096,
};

struct Dim {
    u64 stride_bytes;
    u64 count;
};

// A strided box of equal runs in every block.
struct Segment {
    u64 base;             // address of its first byte in block 0
    u64 block_stride_bytes;
    u64 packed_offset;    // of its first byte among the packed bytes of a block
    u32 run_bytes;
    u32 content_bytes;    // of one block
    u64 first_tile;       // tiles of a block that belong to segments before this one
    u32 n_dims;
    u32 vector_bytes;     // widest access that all its runs allow on both sides
    Dim dims[MAX_DIMS];   // innermost first
};
static_assert(sizeof(Segment) == 22 * sizeof(u64), "abi.rs writes 22 words");

// One block's copy.
struct Move {
    u32 block;
    u32 slot;
};
static_assert(sizeof(Move) == sizeof(u64), "abi.rs writes 1 word");

// The moves of one page map to or from one stretch of packed bytes.
struct Job {
    u64 first_tile;       // tiles of the launch that belong to jobs before this one
    u64 tiles_per_block; // of all its blocks together fewer than 2^32
    u64 first_segment;    // in the table of segments
    u32 segments;
    u32 tiles_per_segment; // if all segments have the same; else 0
    u64 first_move;       // among the moves, which lie behind the jobs
    u64 packed;           // address of the byte at offset 0, which need not be there itself
    u64 block_bytes;
    u64 start;            // the packed bytes that are there: start to end
    u64 end;
    u64 vector_bytes;     // widest access that the packed side allows for every slot
};
static_assert(sizeof(Job) == 10 * sizeof(u64), "abi.rs writes 10 words");

// Bytes to be hashed.
struct Message {
    u64 address;
    u64 bytes;
    u64 first_group;      // groups of leaves that belong to messages before this one
};
static_assert(sizeof(Message) == 3 * sizeof(u64), "abi.rs writes 3 words");

// The last of n sorted records whose `first` is not behind `at`. The first record's is 0.
template <class Record, u64 Record::*first>
__device__ u64 find_last(const Record* records, u64 n, u64 at) {
    u64 low = 0;
    while (n > 1) {
        u64 half = n / 2;
        if (records[low + half].*first <= at) {
            low += half;
            n -= half;
        } else {
            n = half;
        }
    }
    return low;
}

} // namespace tender
