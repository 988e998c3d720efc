/* A weak memory for Spin: threads with views, after the release-acquire fragment of C++'s model.
 *
 * Each atomic location keeps the list of what was stored there, in coherence order. A thread has a
 * view: how far it has seen each location (`at`) and what it knows to have happened in each thread
 * (`clock`). A relaxed load may return any message that is not older than the thread's view, so a
 * load may be early or stale; a store may become known in any order with stores to other
 * locations. A release attaches the thread's view to the message, an acquire takes it in.
 * Read-modify-writes act on the last message and hand its view on (release sequences). Of two
 * sequentially consistent accesses of one location the later one sees the earlier. Data that
 * is not atomic lives in cells: two accesses of one cell, one of them a write, that no view orders
 * are a race, which is a fault by itself; what a race-free read returns is compared as well.
 *
 * A step is one atomic access and all local work of the thread up to its next one. Threads are
 * programs of few instructions; the tables are read from the file named by SYMM_MODEL_PROGRAM.
 * THREADS, LOCATIONS, CELLS, BARRIERS and HISTORY are given on the command line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned char u8;

enum Kind {
  LOAD,        /* a: location, b: register */
  STORE,       /* a: location, b: value */
  EXCHANGE,    /* a: location, b: value, as a read-modify-write */
  ADD,         /* a: location, b: addend modulo 256 */
  CAS,         /* a: location, b: expected, c: desired; blocks until it succeeds */
  TRY,         /* the same without blocking; register 3 := what was found */
  WAIT_GE,     /* a: location, b: least value, by signed difference where counters are narrow */
  WAIT_EQ,     /* a: location, b: value */
  FENCE,       /* order only */
  ARRIVE,      /* a: block barrier */
  DEPART,      /* a: block barrier, b: threads that meet */
  WRITE,       /* a: cell, b: version */
  READ,        /* a: cell, b: version that must be there */
  SKIP_NE,     /* a: register, b: value, c: instruction to go on at where they differ */
  SKIP_LT,     /* a: register, b: value, c: instruction to go on at where it is less */
  SKIP,        /* c: instruction to go on at */
  EXPECT,      /* a: register, b: value it must have */
  SLEEP,       /* a: location, b: register that holds what was seen: futex_wait */
  WAKE_IF,     /* a: register; futex_wake where it is not 0 */
  END
};
enum Order { RELAXED = 0, ACQUIRE = 1, RELEASE = 2, SEQ_CST = 4 };

struct Instruction {
  short kind, order, a, b, c;
};
enum { kMaxLength = 1500 };
static struct Instruction program[THREADS][kMaxLength];
static int first_choice_only;
static int remembers_loads; /* some thread has an acquire fence */
static int wrap;            /* narrow counters: where they wrap, a power of two; 0: they do not */

struct View {
  u8 clock[THREADS];
  u8 at[LOCATIONS];
};
struct Message {
  u8 value;
  struct View view;
};
struct Location {
  u8 count; /* messages so far; number i stands at i % HISTORY */
  struct Message history[HISTORY];
};
struct Cell {
  u8 version, writer, clock, reads[THREADS];
};
struct Thread {
  short at;
  u8 registers[4], sleeps, arrived[BARRIERS];
  struct View now, released, heard;
};
struct Barrier {
  u8 arrivals;
  struct View view[2];
};
struct Machine {
  struct Thread threads[THREADS];
  struct Location locations[LOCATIONS];
  struct Cell cells[CELLS];
  struct Barrier barriers[BARRIERS];
  u8 seq_cst[LOCATIONS]; /* the last message that was stored with that order */
  short fault; /* 0: none; else 1 + instruction */
  u8 why;      /* 1: race, 2: wrong version, 3: wrong value, 4: a bound of the model,
                   5: what is waited for was overwritten */
};

static void join(struct View* into, const struct View* from) {
  int i;
  for (i = 0; i < THREADS; ++i) {
    if (from->clock[i] > into->clock[i]) into->clock[i] = from->clock[i];
  }
  for (i = 0; i < LOCATIONS; ++i) {
    if (from->at[i] > into->at[i]) into->at[i] = from->at[i];
  }
}

static void fail(struct Machine* m, int t, int why) {
  if (m->fault == 0) {
    m->fault = (short)(m->threads[t].at + 1);
    m->why = (u8)why;
  }
}

static struct Message* message(struct Machine* m, int location, int number) {
  return &m->locations[location].history[number % HISTORY];
}

static int last_value(struct Machine* m, int location) {
  return message(m, location, m->locations[location].count - 1)->value;
}

/* Whether a counter has come as far as what is waited for, as the code of that name says. */
static int has_reached(int value, int target) {
  return wrap == 0 ? value >= target : ((value - target) & (wrap - 1)) < wrap / 2;
}

/* The number of the message that the load of thread t returns as its `choice`-th possibility among
 * those that it does not simply poll past; -1: there is none; -2: it may have been forgotten. What
 * is waited for grows, so forgotten messages were no possibility where the oldest kept one is less
 * than what is waited for. */
static int chosen(struct Machine* m, int t, const struct Instruction* op, int choice) {
  const struct Location* location = &m->locations[op->a];
  int number = m->threads[t].now.at[op->a];
  if (op->order & SEQ_CST) {
    if (m->seq_cst[op->a] > number) number = m->seq_cst[op->a];
  }
  if (location->count - number > HISTORY) {
    number = location->count - HISTORY;
    if (op->kind == LOAD || op->kind == SLEEP) return -2;
    if (op->kind == WAIT_GE && has_reached(message(m, op->a, number)->value, op->b)) return -2;
    if (op->kind == WAIT_EQ && message(m, op->a, number)->value >= op->b) return -2;
  }
  for (; number < location->count; ++number) {
    const int value = message(m, op->a, number)->value;
    if (op->kind == WAIT_GE && !has_reached(value, op->b)) continue;
    /* What was stored before is only polled past; what was stored after ends all hope. */
    if (op->kind == WAIT_EQ && value < op->b) continue;
    if (choice-- == 0) return number;
    if (first_choice_only && op->kind == WAIT_GE) return -1;
  }
  return -1;
}

static int is_local(int kind) {
  return kind == FENCE || kind == WRITE || kind == READ || kind == SKIP_NE || kind == SKIP_LT ||
         kind == SKIP || kind == EXPECT;
}

static int can_step(struct Machine* m, int t, int choice) {
  const struct Instruction* op = &program[t][m->threads[t].at];
  int number;
  if (m->fault != 0) return 0;
  switch (op->kind) {
    case END:
      return 0;
    case LOAD:
    case WAIT_GE:
    case WAIT_EQ:
      number = chosen(m, t, op, choice);
      return number != -1;
    case CAS:
      return choice == 0 && last_value(m, op->a) == op->b;
    case DEPART:
      return choice == 0 && m->barriers[op->a].arrivals / op->b >=
                                m->threads[t].arrived[op->a];
    case SLEEP:
      if (m->threads[t].sleeps == 1) return 0;
      if (m->threads[t].sleeps == 2) return choice == 0;
      return chosen(m, t, op, choice) != -1;
    default:
      return choice == 0;
  }
}

/* The view that a store of thread t publishes; advances the thread's clock where it releases. */
static struct View published(struct Thread* thread, int t, int order) {
  const struct View view = order & (RELEASE | SEQ_CST) ? thread->now : thread->released;
  if (order & (RELEASE | SEQ_CST)) thread->now.clock[t]++;
  return view;
}

static void take_in(struct Thread* thread, const struct View* view, int order) {
  if (order & (ACQUIRE | SEQ_CST)) {
    join(&thread->now, view);
  } else if (remembers_loads) {
    join(&thread->heard, view);
  }
}

static void append(struct Machine* m, int t, int location, int value, int order, int keeps_view) {
  struct Thread* thread = &m->threads[t];
  struct Location* where = &m->locations[location];
  struct Message stored;
  memset(&stored, 0, sizeof(stored));
  if (where->count == 255) fail(m, t, 4);
  thread->now.at[location] = where->count;
  stored.value = (u8)value;
  stored.view = published(thread, t, order);
  if (keeps_view) join(&stored.view, &message(m, location, where->count - 1)->view);
  stored.view.at[location] = where->count;
  *message(m, location, where->count) = stored;
  where->count++;
}

static void modify(struct Machine* m, int t, const struct Instruction* op, int value) {
  struct Thread* thread = &m->threads[t];
  const struct Message before = *message(m, op->a, m->locations[op->a].count - 1);
  take_in(thread, &before.view, op->order);
  append(m, t, op->a, value, op->order, 1);
  if (op->order & SEQ_CST) m->seq_cst[op->a] = thread->now.at[op->a];
}

static void fence(struct Thread* thread, int t, int order) {
  if (order & ACQUIRE) join(&thread->now, &thread->heard);
  if (order & RELEASE) {
    thread->released = thread->now;
    thread->now.clock[t]++;
  }
}

static void access_cell(struct Machine* m, int t, const struct Instruction* op) {
  struct Thread* thread = &m->threads[t];
  struct Cell* cell = &m->cells[op->a];
  int i;
  if (cell->clock > thread->now.clock[cell->writer]) fail(m, t, 1);
  if (op->kind == READ) {
    if (cell->version != op->b) fail(m, t, 2);
    cell->reads[t] = thread->now.clock[t];
    return;
  }
  for (i = 0; i < THREADS; ++i) {
    if (cell->reads[i] > thread->now.clock[i]) fail(m, t, 1);
    cell->reads[i] = 0; /* ordered before this write, hence before whatever the write is */
  }
  cell->version = (u8)op->b;
  cell->writer = (u8)t;
  cell->clock = thread->now.clock[t];
}

/* Local work up to the next access of an atomic location. */
static void run_local(struct Machine* m, int t) {
  struct Thread* thread = &m->threads[t];
  while (m->fault == 0) {
    const struct Instruction* op = &program[t][thread->at];
    int next = thread->at + 1;
    if (!is_local(op->kind)) return;
    if (op->kind == FENCE) fence(thread, t, op->order);
    if (op->kind == WRITE || op->kind == READ) access_cell(m, t, op);
    if (op->kind == EXPECT && thread->registers[op->a] != op->b) fail(m, t, 3);
    if (op->kind == SKIP_NE && thread->registers[op->a] != op->b) next = op->c;
    if (op->kind == SKIP_LT && thread->registers[op->a] < op->b) next = op->c;
    if (op->kind == SKIP) next = op->c;
    if (m->fault == 0) thread->at = (short)next;
  }
}

static void load(struct Machine* m, int t, const struct Instruction* op, int choice) {
  struct Thread* thread = &m->threads[t];
  const int number = chosen(m, t, op, choice);
  const struct Message* read;
  if (number == -2) {
    fail(m, t, 4);
    return;
  }
  read = message(m, op->a, number);
  thread->now.at[op->a] = (u8)number;
  take_in(thread, &read->view, op->order);
  if (op->kind == LOAD) thread->registers[op->b] = read->value;
  if (op->kind == WAIT_EQ && read->value != op->b) {
    fail(m, t, 5);
    return;
  }
  thread->at++;
}

/* The kernel looks at the word once more, after a full barrier; what it sees may still be old where
 * the writer's store is not part of the total order of sequentially consistent accesses. */
static void sleep_or_go_on(struct Machine* m, int t, const struct Instruction* op, int choice) {
  struct Thread* thread = &m->threads[t];
  const int number = thread->sleeps == 2 ? 0 : chosen(m, t, op, choice);
  if (number == -2) {
    fail(m, t, 4);
  } else if (thread->sleeps == 2 || message(m, op->a, number)->value != thread->registers[op->b]) {
    thread->sleeps = 0;
    thread->at++;
  } else {
    thread->sleeps = 1;
  }
}

static void step(struct Machine* m, int t, int choice) {
  struct Thread* thread = &m->threads[t];
  const struct Instruction* op = &program[t][thread->at];
  struct Barrier* barrier = &m->barriers[op->kind == ARRIVE || op->kind == DEPART ? op->a : 0];
  int i;
  switch (op->kind) {
    case LOAD:
    case WAIT_GE:
    case WAIT_EQ:
      load(m, t, op, choice);
      break;
    case STORE:
      append(m, t, op->a, op->b, op->order, 0);
      thread->at++;
      break;
    case EXCHANGE:
      modify(m, t, op, op->b);
      thread->at++;
      break;
    case ADD:
      modify(m, t, op, (last_value(m, op->a) + op->b) % 256);
      thread->at++;
      break;
    case CAS:
      modify(m, t, op, op->c);
      thread->at++;
      break;
    case TRY:
      thread->registers[3] = (u8)last_value(m, op->a);
      if (thread->registers[3] == op->b) modify(m, t, op, op->c);
      thread->at++;
      break;
    case ARRIVE:
      join(&barrier->view[thread->arrived[op->a] % 2], &thread->now);
      thread->now.clock[t]++;
      thread->arrived[op->a]++;
      barrier->arrivals++;
      thread->at++;
      break;
    case DEPART:
      join(&thread->now, &barrier->view[(thread->arrived[op->a] - 1) % 2]);
      thread->at++;
      break;
    case SLEEP:
      sleep_or_go_on(m, t, op, choice);
      break;
    case WAKE_IF:
      for (i = 0; i < THREADS; ++i) {
        if (thread->registers[op->a] != 0 && m->threads[i].sleeps == 1) m->threads[i].sleeps = 2;
      }
      thread->at++;
      break;
  }
  run_local(m, t);
}

static void read_program(void) {
  FILE* file = fopen(getenv("SYMM_MODEL_PROGRAM"), "r");
  int t, i, length;
  if (file == NULL || fscanf(file, "%d %d %d", &first_choice_only, &remembers_loads, &wrap) != 3) {
    exit(3);
  }
  for (t = 0; t < THREADS; ++t) {
    if (fscanf(file, "%d", &length) != 1 || length > kMaxLength) exit(3);
    for (i = 0; i < length; ++i) {
      struct Instruction* op = &program[t][i];
      if (fscanf(file, "%hd %hd %hd %hd %hd", &op->kind, &op->order, &op->a, &op->b, &op->c) != 5) {
        exit(3);
      }
    }
  }
  fclose(file);
}

static void start(struct Machine* m) {
  int i;
  read_program();
  memset(m, 0, sizeof(*m));
  for (i = 0; i < LOCATIONS; ++i) m->locations[i].count = 1;
  for (i = 0; i < THREADS; ++i) m->threads[i].now.clock[i] = 1;
  for (i = 0; i < THREADS; ++i) run_local(m, i);
}

static int has_ended(const struct Machine* m, int t) {
  return program[t][m->threads[t].at].kind == END;
}

/* Says which fault was found, and where the threads stand. */
static int is_sound(const struct Machine* m) {
  static const char* const kWhy[] = {"", "race", "wrong version", "wrong value", "bound",
                                     "overwritten"};
  int t;
  if (m->fault == 0) return 1;
  printf("fault: %s", kWhy[m->why]);
  for (t = 0; t < THREADS; ++t) printf(" %d", m->threads[t].at);
  printf("\n");
  return 0;
}
