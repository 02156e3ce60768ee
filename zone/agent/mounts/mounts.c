#include "mounts/mounts.h"

#include "mounts/anonymous_volumes.h"
#include "mounts/file_volumes.h"
#include "mounts/memory_volumes.h"
#include "mounts/rootfs.h"
#include "mounts/scratch.h"

int mounts_check(const CreateContainer *untrusted, struct fault *fault)
{
	struct stack root = { .lowest = untrusted->rootfs, .count = untrusted->n_rootfs };

	if (stack_check(&root, untrusted->id, fault) < 0 || image_volumes_check(untrusted, fault) < 0)
		return -1;
	if (memory_volumes_check(untrusted, fault) < 0 || file_volumes_check(untrusted, fault) < 0)
		return -1;
	return anonymous_volumes_check(untrusted, fault);
}

const char *mounts_disk(const CreateContainer *request, size_t number)
{
	if (number < request->n_rootfs)
		return request->rootfs[number]->disk;
	number -= request->n_rootfs;
	for (size_t i = 0; i < request->n_image_volumes; i++) {
		const ImageVolume *volume = request->image_volumes[i];

		if (number < volume->n_filesystems)
			return volume->filesystems[number]->disk;
		number -= volume->n_filesystems;
	}
	return NULL;
}

int mounts_make(struct mounts *mounts, const char *directory, const CreateContainer *request, struct fault *fault)
{
	struct stack root = {
		.lowest = request->rootfs,
		.count = request->n_rootfs,
		.scratch = request->id,
		.writable_bytes = request->writable_bytes,
	};
	int needs_chown;

	if (rootfs_mount(directory, &root, WRITABLE, &mounts->root_needs_chown, fault) < 0)
		return -1;
	needs_chown = mounts->root_needs_chown;
	for (size_t i = 0; i < request->n_image_volumes; i++) {
		if (image_volume_mount(directory, request->image_volumes[i], &mounts->needs_chown[i], fault) < 0)
			return -1;
		needs_chown |= mounts->needs_chown[i];
	}
	for (size_t i = 0; i < request->n_memory_volumes; i++)
		if (memory_volume_mount(directory, request->memory_volumes[i], fault) < 0)
			return -1;
	if (file_volumes_mount(directory, request, fault) < 0)
		return -1;
	return needs_chown ? 1 : anonymous_volumes_mount(directory, request, fault);
}

int mounts_change_owners(const struct mounts *mounts, const char *directory, const CreateContainer *request,
			 struct fault *fault)
{
	if (mounts->root_needs_chown && rootfs_change_owners(directory, fault) < 0)
		return -1;
	for (size_t i = 0; i < request->n_image_volumes; i++)
		if (mounts->needs_chown[i] &&
		    image_volume_change_owners(directory, request->image_volumes[i], fault) < 0)
			return -1;
	return anonymous_volumes_mount(directory, request, fault);
}

int mounts_unmount(const char *directory, const char *id, struct fault *fault)
{
	int volumes = volumes_unmount(directory, fault);

	if (rootfs_unmount(directory, fault) < 0)
		return -1;
	return scratch_forget(SCRATCH_LAYER, id, fault) < 0 ? -1 : volumes;
}
