/* The on-disk structures of ext4 that ext4.c uses. */
#ifndef MOUNTS_EXT4_DISK_H
#define MOUNTS_EXT4_DISK_H

#include <stdint.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "ext4 is little-endian");

enum {
	BLOCK = 4096,
	BLOCK_SHIFT = 2, /* 1024 << 2 */
	GROUP_BLOCKS = 8 * BLOCK,
	INODE_SIZE = 256,
	INODES_PER_BLOCK = BLOCK / INODE_SIZE,
	GROUP_INODES = GROUP_BLOCKS / 4, /* one for 16 KiB */
	LEAST_INODES = 256,
	FIRST_INODE = 11,
	ROOT_INODE = 2,
	DESCRIPTORS_PER_BLOCK = BLOCK / 32,
	LEAST_DATA = 32,        /* blocks of a group beyond its metadata; a smaller last group is left out */
	RESERVED_MOST = 4096,   /* blocks that the kernel keeps for metadata: 1 of 50, up to this number */
	EXTRA_INODE_SIZE = 32,
	UUID_SIZE = 16,
	/* Flags of a group. */
	NO_INODE_BITMAP = 1,
	NO_BLOCK_BITMAP = 2,
	TABLE_ZEROED = 4,
};

#define MOST_BLOCKS (UINT64_C(1) << 31)

enum {
	COMPAT = 0x8 | 0x20 | 0x200,                 /* ext_attr, dir_index, sparse_super2 */
	INCOMPAT = 0x2 | 0x40,                       /* filetype, extents */
	RO_COMPAT = 0x2 | 0x8 | 0x10 | 0x20 | 0x40,  /* large_file, huge_file, gdt_csum, dir_nlink, extra_isize */
};

struct super {
	uint32_t inodes, blocks, reserved_blocks, free_blocks, free_inodes, first_data_block;
	uint32_t log_block_size, log_cluster_size, blocks_per_group, clusters_per_group, inodes_per_group;
	uint32_t mounted_at, written_at;
	uint16_t mounts, most_mounts, magic, state, errors, minor_revision;
	uint32_t checked_at, check_interval, creator, revision;
	uint16_t reserved_uid, reserved_gid;
	uint32_t first_inode;
	uint16_t inode_size, group;
	uint32_t compat, incompat, ro_compat;
	uint8_t uuid[UUID_SIZE];
	uint8_t names[16 + 64];
	uint32_t compression;
	uint8_t preallocation[4];
	uint8_t journal[16 + 12];
	uint8_t hash_seed[16];
	uint8_t hash_version, journal_backup;
	uint16_t descriptor_size;
	uint32_t mount_options, first_meta_group, made_at;
	uint8_t journal_blocks[68];
	uint32_t high[3];
	uint16_t least_extra, wanted_extra;
	uint32_t flags;
	uint8_t rest[1024 - 356];
};
_Static_assert(sizeof(struct super) == 1024, "a superblock");

struct descriptor {
	uint32_t block_bitmap, inode_bitmap, inode_table;
	uint16_t free_blocks, free_inodes, directories, flags;
	uint8_t rest[8];
	uint16_t unused_inodes, checksum;
};
_Static_assert(sizeof(struct descriptor) == 32, "a group descriptor");

struct inode {
	uint16_t mode, uid;
	uint32_t size, accessed, changed, modified, deleted;
	uint16_t gid, links;
	uint32_t sectors, flags, version;
	uint16_t extent_magic, extents, most_extents, depth;
	uint32_t extent_generation;
	uint32_t logical;
	uint16_t length, physical_high;
	uint32_t physical;
	uint8_t rest[128 - 64];
	uint16_t extra;
	uint8_t unused[126];
};
_Static_assert(sizeof(struct inode) == INODE_SIZE, "an inode");

#endif
