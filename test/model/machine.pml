/* The search over all interleavings of the programs that machine.h carries out: a thread takes any
 * step that it can, with any message that a load may return (the 20 lines below are as many as
 * HISTORY). THREADS is given on the command line. A state in which a thread has not ended and none
 * can step is a deadlock. Spin refuses calls in c_expr, hence the macros. */
c_decl {
\#include "machine.h"
\#define CAN_STEP_0 can_step(&now.machine, Pthread->self, 0)
\#define CAN_STEP_1 can_step(&now.machine, Pthread->self, 1)
\#define CAN_STEP_2 can_step(&now.machine, Pthread->self, 2)
\#define CAN_STEP_3 can_step(&now.machine, Pthread->self, 3)
\#define CAN_STEP_4 can_step(&now.machine, Pthread->self, 4)
\#define CAN_STEP_5 can_step(&now.machine, Pthread->self, 5)
\#define CAN_STEP_6 can_step(&now.machine, Pthread->self, 6)
\#define CAN_STEP_7 can_step(&now.machine, Pthread->self, 7)
\#define CAN_STEP_8 can_step(&now.machine, Pthread->self, 8)
\#define CAN_STEP_9 can_step(&now.machine, Pthread->self, 9)
\#define CAN_STEP_10 can_step(&now.machine, Pthread->self, 10)
\#define CAN_STEP_11 can_step(&now.machine, Pthread->self, 11)
\#define CAN_STEP_12 can_step(&now.machine, Pthread->self, 12)
\#define CAN_STEP_13 can_step(&now.machine, Pthread->self, 13)
\#define CAN_STEP_14 can_step(&now.machine, Pthread->self, 14)
\#define CAN_STEP_15 can_step(&now.machine, Pthread->self, 15)
\#define CAN_STEP_16 can_step(&now.machine, Pthread->self, 16)
\#define CAN_STEP_17 can_step(&now.machine, Pthread->self, 17)
\#define CAN_STEP_18 can_step(&now.machine, Pthread->self, 18)
\#define CAN_STEP_19 can_step(&now.machine, Pthread->self, 19)
\#define TAKE_STEP(choice) step(&now.machine, Pthread->self, choice)
\#define HAS_ENDED has_ended(&now.machine, Pthread->self)
\#define IS_SOUND is_sound(&now.machine)
}
c_state "struct Machine machine" "Global"

proctype thread(byte self) {
  do
  :: atomic {
       if
       :: c_expr { CAN_STEP_0 } -> c_code { TAKE_STEP(0); }
       :: c_expr { CAN_STEP_1 } -> c_code { TAKE_STEP(1); }
       :: c_expr { CAN_STEP_2 } -> c_code { TAKE_STEP(2); }
       :: c_expr { CAN_STEP_3 } -> c_code { TAKE_STEP(3); }
       :: c_expr { CAN_STEP_4 } -> c_code { TAKE_STEP(4); }
       :: c_expr { CAN_STEP_5 } -> c_code { TAKE_STEP(5); }
       :: c_expr { CAN_STEP_6 } -> c_code { TAKE_STEP(6); }
       :: c_expr { CAN_STEP_7 } -> c_code { TAKE_STEP(7); }
       :: c_expr { CAN_STEP_8 } -> c_code { TAKE_STEP(8); }
       :: c_expr { CAN_STEP_9 } -> c_code { TAKE_STEP(9); }
       :: c_expr { CAN_STEP_10 } -> c_code { TAKE_STEP(10); }
       :: c_expr { CAN_STEP_11 } -> c_code { TAKE_STEP(11); }
       :: c_expr { CAN_STEP_12 } -> c_code { TAKE_STEP(12); }
       :: c_expr { CAN_STEP_13 } -> c_code { TAKE_STEP(13); }
       :: c_expr { CAN_STEP_14 } -> c_code { TAKE_STEP(14); }
       :: c_expr { CAN_STEP_15 } -> c_code { TAKE_STEP(15); }
       :: c_expr { CAN_STEP_16 } -> c_code { TAKE_STEP(16); }
       :: c_expr { CAN_STEP_17 } -> c_code { TAKE_STEP(17); }
       :: c_expr { CAN_STEP_18 } -> c_code { TAKE_STEP(18); }
       :: c_expr { CAN_STEP_19 } -> c_code { TAKE_STEP(19); }
       :: c_expr { HAS_ENDED } -> break
       fi;
       assert(c_expr { IS_SOUND })
     }
  od
}

init {
  byte t = 0;
  atomic {
    c_code { start(&now.machine); };
    assert(c_expr { IS_SOUND });
    do
    :: t < THREADS -> run thread(t); t++
    :: else -> break
    od
  }
}
