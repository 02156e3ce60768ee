/* The used parts of libxl.h, libxl_event.h, libxl_utils.h, xenstore.h and libxenvchan.h (Xen 4.17),
 * and of binding.c.  The C compiler fills in "...", because Xen releases differ. */

/* ---- codes: names only, the compiler knows the numbers ---- */
typedef enum {
	ERROR_NONSPECIFIC, ERROR_VERSION, ERROR_FAIL, ERROR_NI, ERROR_NOMEM, ERROR_INVAL, ERROR_BADFAIL,
	ERROR_GUEST_TIMEDOUT, ERROR_TIMEDOUT, ERROR_NOPARAVIRT, ERROR_NOT_READY, ERROR_OSEVENT_REG_FAIL,
	ERROR_BUFFERFULL, ERROR_UNKNOWN_CHILD, ERROR_LOCK_FAIL, ERROR_JSON_CONFIG_EMPTY, ERROR_DEVICE_EXISTS,
	ERROR_CHECKPOINT_DEVOPS_DOES_NOT_MATCH, ERROR_CHECKPOINT_DEVICE_NOT_SUPPORTED,
	ERROR_VNUMA_CONFIG_INVALID, ERROR_DOMAIN_NOTFOUND, ERROR_ABORTED, ERROR_NOTFOUND,
	ERROR_DOMAIN_DESTROYED, ERROR_FEATURE_REMOVED, ERROR_PROTOCOL_ERROR_QMP, ERROR_UNKNOWN_QMP_ERROR,
	ERROR_QMP_GENERIC_ERROR, ERROR_QMP_COMMAND_NOT_FOUND, ERROR_QMP_DEVICE_NOT_ACTIVE,
	ERROR_QMP_DEVICE_NOT_FOUND, ERROR_QEMU_API, ...
} libxl_error;
typedef enum {
	LIBXL_SHUTDOWN_REASON_UNKNOWN, LIBXL_SHUTDOWN_REASON_POWEROFF, LIBXL_SHUTDOWN_REASON_REBOOT,
	LIBXL_SHUTDOWN_REASON_SUSPEND, LIBXL_SHUTDOWN_REASON_CRASH, LIBXL_SHUTDOWN_REASON_WATCHDOG,
	LIBXL_SHUTDOWN_REASON_SOFT_RESET, ...
} libxl_shutdown_reason;
typedef enum {
	LIBXL_SCHEDULER_UNKNOWN, LIBXL_SCHEDULER_SEDF, LIBXL_SCHEDULER_CREDIT, LIBXL_SCHEDULER_CREDIT2,
	LIBXL_SCHEDULER_ARINC653, LIBXL_SCHEDULER_RTDS, LIBXL_SCHEDULER_NULL, ...
} libxl_scheduler;
#define LIBXL_DOMAIN_TYPE_PV ...
#define LIBXL_EVENT_TYPE_DOMAIN_SHUTDOWN ...
#define LIBXL_EVENT_TYPE_DOMAIN_DEATH ...
#define INVALID_DOMID ...

/* ---- contexts (binding.c) ---- */
typedef struct libxl__ctx libxl_ctx;
struct binding;

struct binding *binding_new(void);
int binding_open(struct binding *b);
libxl_ctx *binding_ctx(struct binding *b);
size_t binding_take_log(struct binding *b, char *buffer, size_t size);
int binding_disaster(struct binding *b);
void binding_free(struct binding *b);

/* ---- domains ---- */
typedef struct { ...; } libxl_domain_config;
typedef struct { unsigned char uuid[16]; ...; } libxl_uuid;
typedef struct {
	libxl_uuid uuid;
	uint32_t domid;
	bool running, blocked, paused, shutdown, dying;
	int shutdown_reason;
	uint64_t outstanding_memkb, current_memkb, max_memkb, cpu_time;
	uint32_t vcpu_max_id, vcpu_online;
	int domain_type;
	...;
} libxl_dominfo;
typedef struct libxl_asyncop_how libxl_asyncop_how;
typedef struct libxl_asyncprogress_how libxl_asyncprogress_how;

void libxl_domain_config_init(libxl_domain_config *config);
void libxl_domain_config_dispose(libxl_domain_config *config);
int libxl_domain_config_from_json(libxl_ctx *ctx, libxl_domain_config *config, const char *json);
int libxl_domain_create_new(libxl_ctx *ctx, libxl_domain_config *config, uint32_t *domid,
			    const libxl_asyncop_how *how, const libxl_asyncprogress_how *console);
int libxl_domain_pause(libxl_ctx *ctx, uint32_t domid, const libxl_asyncop_how *how);
int libxl_domain_unpause(libxl_ctx *ctx, uint32_t domid, const libxl_asyncop_how *how);
int libxl_domain_destroy(libxl_ctx *ctx, uint32_t domid, const libxl_asyncop_how *how);
libxl_dominfo *libxl_list_domain(libxl_ctx *ctx, int *count);
void libxl_dominfo_list_free(libxl_dominfo *list, int count);
void libxl_dominfo_init(libxl_dominfo *info);
void libxl_dominfo_dispose(libxl_dominfo *info);
int libxl_domain_info(libxl_ctx *ctx, libxl_dominfo *info, uint32_t domid);
char *libxl_domid_to_name(libxl_ctx *ctx, uint32_t domid);
void free(void *pointer);

/* ---- shares of CPUs; libxl keeps the value of a field left at -1 by init ---- */
typedef struct { int weight, cap; ...; } libxl_domain_sched_params;

int libxl_get_scheduler(libxl_ctx *ctx); /* a libxl_scheduler, or a libxl_error */
void libxl_domain_sched_params_init(libxl_domain_sched_params *params);
void libxl_domain_sched_params_dispose(libxl_domain_sched_params *params);
int libxl_domain_sched_params_get(libxl_ctx *ctx, uint32_t domid, libxl_domain_sched_params *params);
int libxl_domain_sched_params_set(libxl_ctx *ctx, uint32_t domid, const libxl_domain_sched_params *params);

/* ---- sizes of running domains, and pools of CPUs ---- */
typedef struct { uint32_t size; uint8_t *map; } libxl_bitmap;

void libxl_bitmap_init(libxl_bitmap *bitmap);
void libxl_bitmap_dispose(libxl_bitmap *bitmap);
void libxl_bitmap_set(libxl_bitmap *bitmap, int bit);
int libxl_cpu_bitmap_alloc(libxl_ctx *ctx, libxl_bitmap *cpus, int count);
int libxl_set_vcpuonline(libxl_ctx *ctx, uint32_t domid, libxl_bitmap *online, const libxl_asyncop_how *how);
int binding_grow_paging_pool(uint32_t domid, uint64_t bytes);
int libxl_set_memory_target(libxl_ctx *ctx, uint32_t domid, int64_t target_kib, int relative, int enforce);
int libxl_name_to_cpupoolid(libxl_ctx *ctx, const char *name, uint32_t *poolid);

/* ---- devices ---- */
typedef struct { char *vdev; char *pdev_path; int readwrite; ...; } libxl_device_disk;
typedef struct { char *backend; int devid; int state; ...; } libxl_diskinfo;
typedef struct { int devid; ...; } libxl_device_nic;
typedef struct { char *backend; int devid; int state; ...; } libxl_nicinfo;

void libxl_device_disk_init(libxl_device_disk *disk);
void libxl_device_disk_dispose(libxl_device_disk *disk);
int libxl_device_disk_from_json(libxl_ctx *ctx, libxl_device_disk *disk, const char *json);
int libxl_device_disk_add(libxl_ctx *ctx, uint32_t domid, libxl_device_disk *disk, const libxl_asyncop_how *how);
int libxl_device_disk_remove(libxl_ctx *ctx, uint32_t domid, libxl_device_disk *disk,
			     const libxl_asyncop_how *how);
int libxl_device_disk_destroy(libxl_ctx *ctx, uint32_t domid, libxl_device_disk *disk,
			      const libxl_asyncop_how *how);
libxl_device_disk *libxl_device_disk_list(libxl_ctx *ctx, uint32_t domid, int *count);
void libxl_device_disk_list_free(libxl_device_disk *list, int count);
int libxl_vdev_to_device_disk(libxl_ctx *ctx, uint32_t domid, const char *vdev, libxl_device_disk *disk);
void libxl_diskinfo_init(libxl_diskinfo *info);
void libxl_diskinfo_dispose(libxl_diskinfo *info);
int libxl_device_disk_getinfo(libxl_ctx *ctx, uint32_t domid, const libxl_device_disk *disk,
			      libxl_diskinfo *info);
typedef struct { uint8_t func, dev, bus; int domain; ...; } libxl_device_pci;

void libxl_device_pci_init(libxl_device_pci *pci);
void libxl_device_pci_dispose(libxl_device_pci *pci);
int libxl_device_pci_add(libxl_ctx *ctx, uint32_t domid, libxl_device_pci *pci, const libxl_asyncop_how *how);
int libxl_device_pci_remove(libxl_ctx *ctx, uint32_t domid, libxl_device_pci *pci, const libxl_asyncop_how *how);
int libxl_device_pci_destroy(libxl_ctx *ctx, uint32_t domid, libxl_device_pci *pci,
			     const libxl_asyncop_how *how);
libxl_device_pci *libxl_device_pci_list(libxl_ctx *ctx, uint32_t domid, int *count);
void libxl_device_pci_list_free(libxl_device_pci *list, int count);
int libxl_device_pci_assignable_add(libxl_ctx *ctx, libxl_device_pci *pci, int rebind);
int libxl_device_pci_assignable_remove(libxl_ctx *ctx, libxl_device_pci *pci, int rebind);
libxl_device_nic *libxl_device_nic_list(libxl_ctx *ctx, uint32_t domid, int *count);
void libxl_device_nic_list_free(libxl_device_nic *list, int count);
void libxl_nicinfo_init(libxl_nicinfo *info);
void libxl_nicinfo_dispose(libxl_nicinfo *info);
int libxl_device_nic_getinfo(libxl_ctx *ctx, uint32_t domid, const libxl_device_nic *nic, libxl_nicinfo *info);

/* ---- the host ---- */
typedef struct {
	uint32_t nr_cpus, nr_nodes;
	uint64_t total_pages, free_pages, scrub_pages, outstanding_pages;
	bool cap_hvm, cap_pv, cap_hap, cap_hvm_directio;
	...;
} libxl_physinfo;
typedef struct {
	int xen_version_major, xen_version_minor;
	char *xen_version_extra;
	char *capabilities;
	char *commandline;
	int pagesize;
	...;
} libxl_version_info;

void libxl_physinfo_init(libxl_physinfo *info);
void libxl_physinfo_dispose(libxl_physinfo *info);
int libxl_get_physinfo(libxl_ctx *ctx, libxl_physinfo *info);
const libxl_version_info *libxl_get_version_info(libxl_ctx *ctx);

/* 0 and 1: permissive and enforcing; below 0 with errno, ENOSYS without FLASK */
int libxl_flask_getenforce(libxl_ctx *ctx);
int libxl_flask_context_to_sid(libxl_ctx *ctx, char *label, size_t length, uint32_t *sid);

/* ---- events; the union inside libxl_event is read by binding.c ---- */
typedef struct libxl__evgen_domain_death libxl_evgen_domain_death;
struct binding_event {
	uint32_t domid;
	uint64_t user;
	int type; /* libxl_event_type */
	int shutdown_reason; /* for DOMAIN_SHUTDOWN */
};

int libxl_evenable_domain_death(libxl_ctx *ctx, uint32_t domid, uint64_t user, libxl_evgen_domain_death **out);
void libxl_evdisable_domain_death(libxl_ctx *ctx, libxl_evgen_domain_death *generator);
int binding_next_event(struct binding *b, int wake, struct binding_event *out);

/* ---- xenstore ---- */
struct xs_handle;
struct xs_handle *xs_open(unsigned long flags);
void xs_close(struct xs_handle *store);
char **xs_directory(struct xs_handle *store, uint32_t transaction, const char *path, unsigned int *count);
void *xs_read(struct xs_handle *store, uint32_t transaction, const char *path, unsigned int *length);
bool xs_write(struct xs_handle *store, uint32_t transaction, const char *path, const void *data,
	      unsigned int length);
uint32_t xs_transaction_start(struct xs_handle *store);
bool xs_transaction_end(struct xs_handle *store, uint32_t transaction, bool abort);
bool xs_rm(struct xs_handle *store, uint32_t transaction, const char *path);
bool xs_watch(struct xs_handle *store, const char *path, const char *token);
bool xs_unwatch(struct xs_handle *store, const char *path, const char *token);
int xs_fileno(struct xs_handle *store);
char **xs_check_watch(struct xs_handle *store);

/* ---- vchan ---- */
struct libxenvchan_ring { int order; ...; }; /* local copy: the mapped size */
struct libxenvchan { struct libxenvchan_ring read, write; ...; };
struct xentoollog_logger;
struct libxenvchan *libxenvchan_client_init(struct xentoollog_logger *logger, int domain, const char *path);
struct libxenvchan *libxenvchan_server_init(struct xentoollog_logger *logger, int domain, const char *path,
					    size_t read_min, size_t write_min);
void libxenvchan_close(struct libxenvchan *channel);
int libxenvchan_read(struct libxenvchan *channel, void *data, size_t size);
int libxenvchan_write(struct libxenvchan *channel, const void *data, size_t size);
int libxenvchan_wait(struct libxenvchan *channel);
int libxenvchan_fd_for_select(struct libxenvchan *channel);
void binding_never_block(struct libxenvchan *channel);
