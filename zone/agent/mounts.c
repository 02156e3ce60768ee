#include "mounts.h"

#include "memory.h"
#include "rootfs.h"

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
	struct stack root = { request->rootfs, request->n_rootfs };
	int to_change;

	if (rootfs_mount(directory, &root, WRITABLE, &mounts->root_to_change, fault) < 0)
		return -1;
	to_change = mounts->root_to_change;
	for (size_t i = 0; i < request->n_image_volumes; i++) {
		if (volume_mount(directory, request->image_volumes[i], &mounts->to_change[i], fault) < 0)
			return -1;
		to_change |= mounts->to_change[i];
	}
	for (size_t i = 0; i < request->n_memory_volumes; i++)
		if (memory_mount(directory, request->memory_volumes[i], fault) < 0)
			return -1;
	return to_change;
}

int mounts_change_owners(const struct mounts *mounts, const char *directory, const CreateContainer *request,
			 struct fault *fault)
{
	if (mounts->root_to_change && rootfs_change_owners(directory, fault) < 0)
		return -1;
	for (size_t i = 0; i < request->n_image_volumes; i++)
		if (mounts->to_change[i] && volume_change_owners(directory, request->image_volumes[i], fault) < 0)
			return -1;
	return 0;
}

int mounts_unmount(const char *directory, struct fault *fault)
{
	int volumes = volumes_unmount(directory, fault);

	return rootfs_unmount(directory, fault) < 0 ? -1 : volumes;
}
