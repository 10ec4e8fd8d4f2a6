/* An engine of known timing, to measure clients and gateways against.
 *
 * usage: bench_stub PORT TTFT_MS ITL_MS
 *
 * Answers POST with a streamed chat completion: the first token TTFT after the request's last
 * byte, then one every ITL, `max_tokens` of them, then usage. GET /stats says how late it was
 * itself (us) and the most requests it had at once; GET /reset clears that; other GETs get {}.
 *
 * One thread. TTFT and ITL are constants, so tokens that are due form two queues which are sorted
 * by themselves: first tokens, and all others.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FD = 8192, QUEUE = 1 << 16, READ_SIZE = 1 << 16 };

typedef struct {
    char *in;           /* what was read and not handled yet */
    size_t used, room;
    unsigned life;      /* changes when the descriptor is used anew */
    int open, busy, sent, wanted;
    int64_t due;
    unsigned long prompt;
} Conn;

typedef struct { int fd; unsigned life; int64_t due; } Due;
typedef struct { Due items[QUEUE]; unsigned head, tail; } Queue;

static Conn conns[MAX_FD];
static Queue firsts, others;
static int64_t ttft, itl;
static struct { unsigned long requests, done, tokens, broken; int active, peak;
                double first_late, other_late, worst; unsigned long first_n, other_n; } stats;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void push(Queue *q, int fd, int64_t due) {
    if (q->tail - q->head == QUEUE) { fprintf(stderr, "bench_stub: too many streams\n"); exit(1); }
    q->items[q->tail++ % QUEUE] = (Due){fd, conns[fd].life, due};
}

static Due *peek(Queue *q) {
    return q->head == q->tail ? NULL : &q->items[q->head % QUEUE];
}

static void hang_up(int fd) {
    if (conns[fd].busy) { stats.active--; stats.broken++; }
    conns[fd].open = conns[fd].busy = 0;
    conns[fd].life++;
    close(fd);
}

static int put(int fd, const char *data, size_t size) {
    while (size) {
        ssize_t n = send(fd, data, size, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) { usleep(100); continue; }
        if (n <= 0) { hang_up(fd); return -1; }
        data += n; size -= n;
    }
    return 0;
}

static void answer(int fd, const char *body) {
    char head[256];
    int n = snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                     "content-length: %zu\r\n\r\n", strlen(body));
    if (put(fd, head, n) == 0) put(fd, body, strlen(body));
}

static void show_stats(int fd) {
    char body[512];
    snprintf(body, sizeof body,
             "{\"requests\":%lu,\"done\":%lu,\"tokens\":%lu,\"broken\":%lu,\"peak\":%d,"
             "\"first_late_us\":%.1f,\"other_late_us\":%.1f,\"worst_late_us\":%.1f}",
             stats.requests, stats.done, stats.tokens, stats.broken, stats.peak,
             stats.first_n ? stats.first_late / stats.first_n / 1e3 : 0,
             stats.other_n ? stats.other_late / stats.other_n / 1e3 : 0, stats.worst / 1e3);
    answer(fd, body);
}

static void handle(int fd, const char *head, const char *body, size_t size) {
    Conn *c = &conns[fd];
    if (strncmp(head, "POST ", 5)) {
        if (!strncmp(head, "GET /stats", 10)) { show_stats(fd); return; }
        if (!strncmp(head, "GET /reset", 10)) {
            int active = stats.active;
            memset(&stats, 0, sizeof stats);
            stats.active = stats.peak = active;
        }
        answer(fd, strncmp(head, "GET /v1/models", 14) ? "{}" :
               "{\"object\":\"list\",\"data\":[{\"id\":\"stub\",\"object\":\"model\"}]}");
        return;
    }
    /* Where the number stands in a long body is not known: look from its end. */
    const char *found = NULL, *key = "\"max_tokens\":";
    for (const char *p = body; size && (p = memmem(p, body + size - p, key, strlen(key))); p++) found = p;
    c->wanted = found ? atoi(found + strlen(key)) : 16;
    if (c->wanted < 1) c->wanted = 1;
    c->busy = 1; c->sent = 0; c->prompt = size / 4;
    c->due = now_ns() + ttft;
    stats.requests++;
    if (++stats.active > stats.peak) stats.peak = stats.active;
    push(&firsts, fd, c->due);
}

static void token(int fd, int first) {
    Conn *c = &conns[fd];
    double late = now_ns() - c->due;
    char data[1024], out[2600];
    int n = 0;
    if (first) { stats.first_late += late; stats.first_n++; }
    else { stats.other_late += late; stats.other_n++; }
    if (late > stats.worst) stats.worst = late;
    stats.tokens++;
    int last = ++c->sent == c->wanted;
    if (first)
        n = sprintf(out, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                    "transfer-encoding: chunked\r\n\r\n");
    int m = snprintf(data, sizeof data,
        "data: {\"id\":\"chatcmpl-%d\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
        "\"model\":\"stub\",\"choices\":[{\"index\":0,\"delta\":{%s\"content\":\" tok\"},"
        "\"logprobs\":null,\"finish_reason\":%s}]}\n\n",
        fd, first ? "\"role\":\"assistant\"," : "", last ? "\"length\"" : "null");
    n += sprintf(out + n, "%x\r\n%s\r\n", m, data);
    if (last) {
        m = snprintf(data, sizeof data,
            "data: {\"id\":\"chatcmpl-%d\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
            "\"model\":\"stub\",\"choices\":[],\"usage\":{\"prompt_tokens\":%lu,\"total_tokens\":%lu,"
            "\"completion_tokens\":%d}}\n\ndata: [DONE]\n\n",
            fd, c->prompt, c->prompt + c->wanted, c->wanted);
        n += sprintf(out + n, "%x\r\n%s\r\n0\r\n\r\n", m, data);
    }
    if (put(fd, out, n)) return;
    if (last) { c->busy = 0; stats.active--; stats.done++; return; }
    c->due += itl;
    push(&others, fd, c->due);
}

static size_t content_length(const char *head, const char *end) {
    for (const char *p = head; (p = memchr(p, '\n', end - p)); p++)
        if (!strncasecmp(p + 1, "content-length:", 15)) return strtoul(p + 16, NULL, 10);
    return 0;
}

static void take_requests(int fd) {
    Conn *c = &conns[fd];
    while (c->open && !c->busy && c->used) {
        c->in[c->used] = 0;
        char *end = memmem(c->in, c->used, "\r\n\r\n", 4);
        if (!end) return;
        size_t head = end + 4 - c->in, body = content_length(c->in, end);
        if (c->used < head + body) return;
        handle(fd, c->in, c->in + head, body);
        if (!c->open) return;
        c->used -= head + body;
        memmove(c->in, c->in + head + body, c->used);
    }
}

static void readable(int fd) {
    Conn *c = &conns[fd];
    for (;;) {
        if (c->room - c->used < READ_SIZE) {
            c->room = c->room ? c->room * 2 : 2 * READ_SIZE;
            c->in = realloc(c->in, c->room + 1);
        }
        ssize_t n = recv(fd, c->in + c->used, c->room - c->used, 0);
        if (n < 0 && errno == EAGAIN) break;
        if (n <= 0) { hang_up(fd); return; }
        c->used += n;
    }
    take_requests(fd);
}

static void run_due(Queue *q, int first) {
    for (Due *d; (d = peek(q)) && d->due <= now_ns();) {
        int fd = d->fd, alive = conns[fd].open && conns[fd].life == d->life;
        q->head++;
        if (!alive) continue;
        token(fd, first);
        if (conns[fd].open && !conns[fd].busy) take_requests(fd);
    }
}

static void accept_all(int server, int poll) {
    int one = 1;
    for (int fd; (fd = accept4(server, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
        if (fd >= MAX_FD) { close(fd); continue; }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        conns[fd].open = 1; conns[fd].busy = 0; conns[fd].used = 0; conns[fd].life++;
        struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(poll, EPOLL_CTL_ADD, fd, &e);
    }
}

int main(int argc, char **argv) {
    if (argc != 4) { fprintf(stderr, "usage: bench_stub PORT TTFT_MS ITL_MS\n"); return 2; }
    ttft = atof(argv[2]) * 1e6; itl = atof(argv[3]) * 1e6;
    signal(SIGPIPE, SIG_IGN);
    int server = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(server, (void *)&a, sizeof a) || listen(server, 4096)) { perror("bind"); return 1; }
    int poll = epoll_create1(0), timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = server}, found[256];
    epoll_ctl(poll, EPOLL_CTL_ADD, server, &e);
    e.data.fd = timer;
    epoll_ctl(poll, EPOLL_CTL_ADD, timer, &e);
    for (;;) {
        Due *f = peek(&firsts), *o = peek(&others);
        int64_t next = f && (!o || f->due < o->due) ? f->due : o ? o->due : 0;
        struct itimerspec t = {.it_value = {next / 1000000000, next % 1000000000}};
        timerfd_settime(timer, TFD_TIMER_ABSTIME, &t, NULL);
        int n = epoll_wait(poll, found, 256, -1);
        run_due(&others, 0);
        run_due(&firsts, 1);
        for (int i = 0; i < n; i++) {
            int fd = found[i].data.fd;
            uint64_t ticks;
            if (fd == server) accept_all(server, poll);
            else if (fd == timer) { if (read(timer, &ticks, sizeof ticks) < 0) continue; }
            else if (conns[fd].open) readable(fd);
        }
    }
}
