/* NVML of two boards whose power follows a script, for the real nvidia-ml-py.
 *
 * NVML_STUB_1, NVML_STUB_2: "idle=25,load=350,t0=2,t1=5,..." in watts, and in seconds since nvmlInit
 *     period   seconds between updates of counter and power      counter, power  0: not supported
 *     stuck    the counter stands still from then on              reset   it starts again at 0 then
 *     scale    of the counter: it disagrees with power            lost    no call succeeds from then on
 *     reasons  bits that lower clocks                             others  processes of others on the board
 * NVML_STUB_CLOCK: a file that holds the time as a double. Without it, the machine's clock.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, TOO_SMALL = 7, LOST = 15 };

typedef struct {
    double idle, load, t0, t1, period, counter, power, stuck, reset, scale, lost, reasons, others;
} Script;

static Script scripts[2];
static const double *virtual_now;
static double born;

static double now(void) {
    if (virtual_now) return *virtual_now;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static double get(const char *text, const char *key, double otherwise) {
    char wanted[32];
    snprintf(wanted, sizeof wanted, ",%s=", key);
    const char *found = text ? strstr(text, wanted) : NULL;
    return found ? atof(found + strlen(wanted)) : otherwise;
}

int nvmlInitWithFlags(unsigned flags) {
    if (born) return OK;
    const char *file = getenv("NVML_STUB_CLOCK");
    if (file) {
        int handle = open(file, O_RDONLY);
        virtual_now = mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, handle, 0);
        close(handle);
    }
    born = now();
    for (int i = 0; i < 2; i++) {
        const char *given = getenv(i ? "NVML_STUB_2" : "NVML_STUB_1");
        char text[512];
        snprintf(text, sizeof text, ",%s", given ? given : "");
        scripts[i] = (Script){
            get(text, "idle", 25),    get(text, "load", 25),   get(text, "t0", 1e9),    get(text, "t1", 1e9),
            get(text, "period", 0.1), get(text, "counter", 1), get(text, "power", 1),   get(text, "stuck", 1e9),
            get(text, "reset", 1e9),  get(text, "scale", 1),   get(text, "lost", 1e9),  get(text, "reasons", 0),
            get(text, "others", 0),
        };
    }
    return OK;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return OK; }

const char *nvmlErrorString(int error) {
    return error == NOT_SUPPORTED ? "Not Supported" : error == LOST ? "GPU is lost" : error ? "Error" : "Success";
}

static const Script *of(void *board) { return &scripts[(uintptr_t)board - 1]; }
static int answer(const Script *s) { return now() - born > s->lost ? LOST : OK; }

static double tick(const Script *s) { /* of the last update, since birth */
    return (long long)((now() - born) / s->period + 1e-6) * s->period;
}

static double joules(const Script *s, double t) {
    double loaded = t > s->t0 ? (t < s->t1 ? t : s->t1) - s->t0 : 0;
    return s->idle * t + (s->load - s->idle) * loaded;
}

static double watts(const Script *s, double t) { return t >= s->t0 && t < s->t1 ? s->load : s->idle; }

int nvmlDeviceGetHandleByUUID(const char *uuid, void **board) {
    for (uintptr_t i = 1; i <= 2; i++) {
        char own[64];
        snprintf(own, sizeof own, "GPU-00000000-0000-0000-0000-%012lu", (unsigned long)i);
        if (!strcmp(uuid, own)) {
            *board = (void *)i;
            return OK;
        }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetName(void *board, char *text, unsigned size) {
    snprintf(text, size, "Stub %d", (int)(uintptr_t)board);
    return OK;
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    snprintf(text, size, "580.00");
    return OK;
}

int nvmlDeviceGetTotalEnergyConsumption(void *board, unsigned long long *mj) {
    const Script *s = of(board);
    if (!s->counter) return NOT_SUPPORTED;
    double t = tick(s);
    if (t > s->stuck) t = s->stuck;
    double since = t > s->reset ? joules(s, t) - joules(s, s->reset) : 5000 + joules(s, t);
    *mj = (unsigned long long)(1e3 * s->scale * since);
    return answer(s);
}

typedef struct {
    unsigned id, scope;
    int64_t stamp, latency;
    int type, error;
    union {
        double d;
        unsigned u;
        unsigned long long l;
    } value;
} Field;

int nvmlDeviceGetFieldValues(void *board, int number, Field *fields) {
    const Script *s = of(board);
    for (int i = 0; i < number; i++) {
        fields[i].error = fields[i].id == 186 && s->power ? OK : NOT_SUPPORTED;
        fields[i].type = 1;
        fields[i].stamp = (int64_t)((born + tick(s)) * 1e6);
        fields[i].value.u = (unsigned)(1e3 * watts(s, tick(s)));
    }
    return answer(s);
}

int nvmlDeviceGetClockInfo(void *board, int which, unsigned *mhz) {
    *mhz = which == 1 ? 2520 : 10501;
    return OK;
}

int nvmlDeviceGetTemperature(void *board, int sensor, unsigned *c) {
    *c = 50 + (unsigned)(uintptr_t)board;
    return OK;
}

int nvmlDeviceGetCurrentClocksEventReasons(void *board, unsigned long long *reasons) {
    *reasons = (unsigned long long)of(board)->reasons;
    return OK;
}

int nvmlDeviceGetEnforcedPowerLimit(void *board, unsigned *mw) {
    *mw = 450000;
    return OK;
}

typedef struct {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu, compute;
} Process;

int nvmlDeviceGetComputeRunningProcesses_v3(void *board, unsigned *number, Process *processes) {
    unsigned there = (unsigned)of(board)->others, room = *number;
    *number = there;
    if (!there) return OK;
    if (!processes || room < there) return TOO_SMALL;
    for (unsigned i = 0; i < there; i++) processes[i] = (Process){1 + i, 0, 0, 0};
    return OK;
}
