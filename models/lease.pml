/* The lease protocol: one job, its store, and workers that crash, freeze, and miss answers.
 *
 * What is modelled, each as one atomic step of the store (core/transitions.py):
 *   add       the job is there, waiting; its producer may not hear of it and add it again
 *   claim     a waiting job becomes active under a new token (the answer may get lost)
 *   extend    the newest token moves the deadline; any other is told "lost"
 *   expire    time passes: the deadline is over (at any moment, so a worker may be as slow as it likes)
 *   recover   an active job whose deadline is over waits again; too many stalls fail it
 *   settle    complete or release under a token: ok, already, lost (the answer may get lost)
 *   cancel    a waiting job is cancelled, an active one is marked
 *   reconcile a worker that missed an answer gives back what it does not hold
 *
 * A frozen worker is one that makes no step for a while: the scheduler of the checker does that by itself.
 * A crashed one forgets everything and begins anew.
 *
 * Checked on every interleaving:
 *   - the job completes at most once, and never after it ended in another way
 *   - a token settles at most once
 *   - only the newest token changes the job
 *   - a completion whose answer was lost is answered "already" when it is repeated, never "lost" (a release
 *     may be: the store remembers the last token that settled, and somebody else may have settled since)
 *   - a cancellation answered "cancelled" holds
 *   - the job is never lost: it waits, or is active under a token, or has ended (no end state but that)
 *
 * -DNO_FENCING: the store does not look at the token. -DNO_MEMORY: it does not remember which token settled last.
 * -DEAGER_RECOVERY: recovery does not look at the deadline; that costs work and breaks nothing.
 */

#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef CLAIMS
#define CLAIMS 4        /* tokens that may be given out */
#endif
#define MAX_STALLS 2
#ifndef LOST_ANSWERS
#define LOST_ANSWERS 2  /* in all */
#endif
#define CRASHES 1

mtype = { absent, waiting, leased, completed, failed, cancelled };
mtype = { ok, already, lost };

mtype state = absent;
byte token = 0;             /* of the newest lease, while active */
byte settled_token = 0;     /* the one that settled last */
byte last_token = 0;
byte holder = 0;            /* the worker that the newest lease was given to */
bool deadline_over = false;
bool cancel_asked = false;
byte stalls = 0;

/* what the world has seen */
byte completions = 0;
byte settled[CLAIMS + 1];
bool told_cancelled = false;
byte lost_answers = 0;
byte crashes = 0;

#define ENDED (state == completed || state == failed || state == cancelled)
#define LOSE_ANSWER (lost_answers < LOST_ANSWERS)

inline end_as(how) {
#ifndef NO_FENCING
    assert(!ENDED);
#endif
    state = how;
    settled_token = token;
    token = 0;
}

/* Settle under `mine`; `complete_it` or release. The answer goes to `answer`. */
inline settle(mine, complete_it, answer) {
    if
#ifdef NO_FENCING
    :: state != absent ->
#else
    :: state == leased && token == mine ->
#endif
        settled[mine]++;
#ifndef NO_FENCING
        assert(settled[mine] == 1);
        assert(mine == last_token);
#endif
        if
        :: complete_it ->
            completions++;
            assert(completions <= 1);
#ifndef NO_FENCING
            assert(!told_cancelled);
#endif
            end_as(completed)
        :: else ->
            if
            :: cancel_asked -> end_as(cancelled)
            :: else -> state = waiting; settled_token = token; token = 0
            fi
        fi;
        deadline_over = false;
        answer = ok
#ifndef NO_MEMORY
    :: else ->
        if
        :: settled_token == mine -> answer = already
        :: else -> answer = lost
        fi
#else
    :: else -> answer = lost
#endif
    fi
}

active proctype producer() {
    /* The add is acknowledged, or its answer is lost and it is repeated: the same id is the same job. */
    do
    :: atomic { state == absent -> state = waiting }
    :: atomic { state != absent && LOSE_ANSWER -> lost_answers++ }
    :: state != absent -> break
    od
}

active [WORKERS] proctype worker() {
    byte mine = 0;
    bool done = false;        /* the handler came to its end */
    bool sent = false;        /* a settlement under `mine` was carried out, the answer did not come */
    bool missed = false;      /* some answer did not come: reconcile before the next claim */
    bool complete_it = false;
    mtype answer = ok;
    do
    /* claim */
    :: atomic { mine == 0 && !missed && state == waiting && last_token < CLAIMS ->
        last_token++;
        token = last_token;
        holder = _pid;
        state = leased;
        deadline_over = false;
        if
        :: mine = token; done = false; sent = false
        :: LOSE_ANSWER -> lost_answers++; missed = true
        fi }
    /* reconcile: what this worker was given and does not hold goes back */
    :: atomic { mine == 0 && missed ->
        if
        :: state == leased && holder == _pid ->
            if
            :: cancel_asked -> assert(!ENDED); state = cancelled; token = 0
            :: else -> state = waiting; token = 0
            fi
        :: else -> skip
        fi;
        missed = false }
    /* extend */
    :: atomic { mine != 0 && !done && state == leased && token == mine && deadline_over -> deadline_over = false }
    :: atomic { mine != 0 && !done && !(state == leased && token == mine) -> mine = 0 } /* told "lost": stop */
    /* the handler ends, well or not */
    :: atomic { mine != 0 && !done -> done = true; complete_it = true }
    :: atomic { mine != 0 && !done -> done = true; complete_it = false }
    /* settle, again and again until there is an answer */
    :: atomic { mine != 0 && done ->
        settle(mine, complete_it, answer);
        if
        :: true ->
            assert(!(sent && complete_it && answer == lost));
            mine = 0
        :: LOSE_ANSWER ->
            lost_answers++;
            sent = sent || answer == ok
        fi }
    /* kill -9, and a new process in its place: it has another identity and cannot reconcile the old one's */
    :: atomic { crashes < CRASHES && mine != 0 -> crashes++; mine = 0; done = false; sent = false; missed = false }
    :: ENDED && mine == 0 -> break
    :: last_token == CLAIMS && mine == 0 && state != waiting -> break
    :: last_token == CLAIMS && mine == 0 && state == waiting -> break
    od
}

active proctype time_and_recovery() {
    do
    :: atomic { state == leased && !deadline_over -> deadline_over = true }
#ifdef EAGER_RECOVERY
    :: atomic { state == leased ->
#else
    :: atomic { state == leased && deadline_over ->
#endif
        assert(token != 0);
        stalls++;
        if
        :: cancel_asked -> assert(!ENDED); state = cancelled
        :: !cancel_asked && stalls > MAX_STALLS -> assert(!ENDED); state = failed
        :: else -> state = waiting
        fi;
        token = 0;
        deadline_over = false }
    :: ENDED -> break
    :: last_token == CLAIMS && state == waiting -> break   /* the model has no more tokens: stop here */
    od
}

active proctype somebody() {
    if
    :: atomic { state == waiting -> state = cancelled; told_cancelled = true }
    :: atomic { state == leased -> cancel_asked = true }
    :: skip
    fi
}
