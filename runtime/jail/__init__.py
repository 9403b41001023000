"""What runs inside the sandbox. Outside is ``runtime.sandbox``; nothing else imports this.

Only the standard library is imported here: ``python -S`` runs it, and it must start quickly.

::

    launcher     enters new user, mount, pid, net, ipc and uts namespaces, as an ordinary user id
    `- keeper    pid 1 of the outer pid namespace: builds the root, serves one job after another
       `- supervisor   one job: starts the two below, watches time and memory, reports
          |- examiner  user 1: runs the tests; the program is a remote object to it
          `- init      pid 1 of an inner pid namespace, with its own /tmp and no /proc
             `- guest  user 2: runs the program and answers the examiner's calls

The verdict is the examiner's, written to a pipe that the guest never has. The guest cannot name
the examiner (another pid namespace), nor signal, trace or read it (another user), and it is forked
before the tests are read, so it does not have them in memory either. Only plain values cross
between the two, and the examiner compares them by itself: a program can change nothing but its own
answers, so it passes exactly when these are right.

When the supervisor ends the inner pid 1, the kernel ends all that lives in that namespace; when
the keeper or the launcher ends, all of it.
"""
