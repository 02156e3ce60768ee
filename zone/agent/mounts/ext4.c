/* The layout follows Documentation/filesystems/ext4 in the kernel's source.  Each group has its bitmaps and inode table
 * at its start; group 0 has the superblock and all group descriptors before them, and no other group has a copy
 * (sparse_super2).  Only the first and the last group's bitmaps are written: a flag in the other descriptors tells the
 * kernel to compute the bitmaps, and requires a checksum (gdt_csum).  Numbers are stored little-endian, this machine's
 * byte order. */
#include "mounts/ext4.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "mounts/ext4_disk.h"

struct layout {
	uint32_t blocks, groups, descriptor_blocks, inodes_per_group, table_blocks;
};

static uint32_t at_most(uint64_t value, uint32_t most)
{
	return value < most ? (uint32_t)value : most;
}

/* The metadata blocks of a group. */
static uint32_t metadata(const struct layout *layout, uint32_t group)
{
	return (group ? 0 : 1 + layout->descriptor_blocks) + 2 + layout->table_blocks;
}

static uint32_t group_blocks(const struct layout *layout, uint32_t group)
{
	return at_most(layout->blocks - (uint64_t)group * GROUP_BLOCKS, GROUP_BLOCKS);
}

static struct layout plan(uint64_t blocks)
{
	struct layout layout;
	uint32_t inodes = at_most(blocks / 4, GROUP_INODES) / INODES_PER_BLOCK * INODES_PER_BLOCK;
	uint32_t last;

	layout.blocks = (uint32_t)blocks;
	layout.inodes_per_group = inodes < LEAST_INODES ? LEAST_INODES : inodes;
	layout.table_blocks = layout.inodes_per_group / INODES_PER_BLOCK;
	layout.groups = (layout.blocks + GROUP_BLOCKS - 1) / GROUP_BLOCKS;
	layout.descriptor_blocks = (layout.groups + DESCRIPTORS_PER_BLOCK - 1) / DESCRIPTORS_PER_BLOCK;
	last = layout.groups ? group_blocks(&layout, layout.groups - 1) : 0;
	if (layout.groups > 1 && last < metadata(&layout, layout.groups - 1) + LEAST_DATA) {
		layout.blocks -= last;
		layout.groups--;
	}
	return layout;
}

static uint64_t all_metadata(const struct layout *layout)
{
	return 1 + layout->descriptor_blocks + (uint64_t)layout->groups * (2 + layout->table_blocks);
}

uint64_t ext4_size_for(uint64_t bytes)
{
	uint64_t data = bytes / BLOCK > MOST_BLOCKS ? MOST_BLOCKS : bytes / BLOCK;
	uint64_t blocks;

	if (data < LEAST_DATA)
		data = LEAST_DATA;
	blocks = data;
	/* The added metadata needs metadata itself. */
	for (int i = 0; i < 4; i++) {
		struct layout layout = plan(blocks);

		blocks = data + 1 + all_metadata(&layout) + at_most(blocks / 50, RESERVED_MOST);
	}
	return blocks * BLOCK;
}

static int put(int fd, const void *data, size_t size, uint64_t offset)
{
	ssize_t written = pwrite(fd, data, size, (off_t)offset);

	if (written >= 0 && (size_t)written != size)
		errno = ENOSPC;
	return written == (ssize_t)size ? 0 : -1;
}

static void set_bits(uint8_t *bitmap, uint32_t from, uint32_t to)
{
	for (uint32_t bit = from; bit < to; bit++)
		bitmap[bit / 8] |= (uint8_t)(1U << bit % 8);
}

static bool has_bitmaps(const struct layout *layout, uint32_t group)
{
	return group == 0 || group == layout->groups - 1;
}

/* The root directory's block is the first data block of group 0. */
static uint32_t used_blocks(const struct layout *layout, uint32_t group)
{
	return metadata(layout, group) + (group ? 0 : 1);
}

static int put_bitmaps(int fd, const struct layout *layout, uint32_t group)
{
	uint8_t bitmaps[2 * BLOCK] = { 0 };
	uint64_t first = (uint64_t)group * GROUP_BLOCKS + (group ? 0 : 1 + layout->descriptor_blocks);

	set_bits(bitmaps, 0, used_blocks(layout, group));
	set_bits(bitmaps, group_blocks(layout, group), GROUP_BLOCKS);
	if (!group)
		set_bits(bitmaps + BLOCK, 0, FIRST_INODE - 1);
	set_bits(bitmaps + BLOCK, layout->inodes_per_group, GROUP_BLOCKS);
	return put(fd, bitmaps, sizeof(bitmaps), first * BLOCK);
}

static uint16_t crc16(uint16_t crc, const void *data, size_t size)
{
	const uint8_t *byte = data;

	for (; size; size--) {
		crc ^= *byte++;
		for (int bit = 0; bit < 8; bit++)
			crc = (uint16_t)(crc >> 1 ^ (crc & 1 ? 0xa001 : 0));
	}
	return crc;
}

static struct descriptor descriptor_of(const struct layout *layout, uint32_t group, const uint8_t uuid[UUID_SIZE])
{
	uint32_t first = group * GROUP_BLOCKS + (group ? 0 : 1 + layout->descriptor_blocks);
	uint16_t inodes = (uint16_t)(layout->inodes_per_group - (group ? 0 : FIRST_INODE - 1));
	struct descriptor descriptor = {
		.block_bitmap = first,
		.inode_bitmap = first + 1,
		.inode_table = first + 2,
		.free_blocks = (uint16_t)(group_blocks(layout, group) - used_blocks(layout, group)),
		.free_inodes = inodes,
		.directories = group ? 0 : 1,
		.flags = has_bitmaps(layout, group) ? TABLE_ZEROED : TABLE_ZEROED | NO_BLOCK_BITMAP | NO_INODE_BITMAP,
		.unused_inodes = inodes,
	};

	descriptor.checksum = crc16(0xffff, uuid, UUID_SIZE);
	descriptor.checksum = crc16(descriptor.checksum, &group, sizeof(group));
	descriptor.checksum =
		crc16(descriptor.checksum, &descriptor, offsetof(struct descriptor, checksum));
	return descriptor;
}

static int put_descriptors(int fd, const struct layout *layout, const uint8_t uuid[UUID_SIZE])
{
	struct descriptor block[DESCRIPTORS_PER_BLOCK];

	for (uint32_t group = 0; group < layout->groups; group++) {
		uint32_t at = group % DESCRIPTORS_PER_BLOCK;

		block[at] = descriptor_of(layout, group, uuid);
		if (has_bitmaps(layout, group) && put_bitmaps(fd, layout, group) < 0)
			return -1;
		if (at + 1 < DESCRIPTORS_PER_BLOCK && group + 1 < layout->groups)
			continue;
		if (put(fd, block, (at + 1) * sizeof(block[0]),
			BLOCK + (uint64_t)(group - at) * sizeof(block[0])) < 0)
			return -1;
	}
	return 0;
}

static int put_root(int fd, const struct layout *layout, uint32_t now)
{
	uint64_t table = 1 + layout->descriptor_blocks + 2;
	uint32_t block = metadata(layout, 0);
	struct inode root = {
		.mode = 040755,
		.size = BLOCK,
		.accessed = now,
		.changed = now,
		.modified = now,
		.links = 2,
		.sectors = BLOCK / 512,
		.flags = 0x80000, /* extents */
		.extent_magic = 0xf30a,
		.extents = 1,
		.most_extents = 4,
		.length = 1,
		.physical = block,
		.extra = EXTRA_INODE_SIZE,
	};
	/* inode, length of the entry, length of the name, 2: a directory */
	static const uint8_t entries[] = {
		ROOT_INODE, 0, 0, 0, 12, 0, 1, 2, '.', 0, 0, 0,
		ROOT_INODE, 0, 0, 0, (BLOCK - 12) & 0xff, (BLOCK - 12) >> 8, 2, 2, '.', '.', 0, 0,
	};

	if (put(fd, entries, sizeof(entries), (uint64_t)block * BLOCK) < 0)
		return -1;
	return put(fd, &root, sizeof(root), table * BLOCK + (ROOT_INODE - 1) * INODE_SIZE);
}

static int put_super(int fd, const struct layout *layout, const uint8_t uuid[UUID_SIZE], uint32_t now)
{
	uint32_t inodes = layout->groups * layout->inodes_per_group;
	struct super super = {
		.inodes = inodes,
		.blocks = layout->blocks,
		.free_blocks = (uint32_t)(layout->blocks - all_metadata(layout) - 1),
		.free_inodes = inodes - (FIRST_INODE - 1),
		.log_block_size = BLOCK_SHIFT,
		.log_cluster_size = BLOCK_SHIFT,
		.blocks_per_group = GROUP_BLOCKS,
		.clusters_per_group = GROUP_BLOCKS,
		.inodes_per_group = layout->inodes_per_group,
		.written_at = now,
		.most_mounts = 0xffff,
		.magic = 0xef53,
		.state = 1,  /* clean */
		.errors = 1, /* go on */
		.checked_at = now,
		.revision = 1,
		.first_inode = FIRST_INODE,
		.inode_size = INODE_SIZE,
		.compat = COMPAT,
		.incompat = INCOMPAT,
		.ro_compat = RO_COMPAT,
		.hash_version = 1, /* half MD4 */
		.made_at = now,
		.least_extra = EXTRA_INODE_SIZE,
		.wanted_extra = EXTRA_INODE_SIZE,
		.flags = 1, /* characters are signed in hashes */
	};

	memcpy(super.uuid, uuid, UUID_SIZE);
	memcpy(super.hash_seed, uuid, UUID_SIZE);
	return put(fd, &super, sizeof(super), 1024);
}

int ext4_format(int fd, uint64_t bytes)
{
	struct layout layout;
	uint32_t now = (uint32_t)time(NULL);
	uint8_t uuid[UUID_SIZE] = { 0 };

	if (bytes / BLOCK > MOST_BLOCKS) {
		errno = EFBIG;
		return -1;
	}
	layout = plan(bytes / BLOCK);
	if (!layout.groups || layout.blocks < metadata(&layout, 0) + LEAST_DATA) {
		errno = ENOSPC;
		return -1;
	}
	if (getrandom(uuid, sizeof(uuid), GRND_NONBLOCK) < 0 && errno != EAGAIN)
		return -1;
	uuid[0] |= 1; /* the UUID must not be nil */
	if (put_descriptors(fd, &layout, uuid) < 0 || put_root(fd, &layout, now) < 0)
		return -1;
	return put_super(fd, &layout, uuid, now);
}
