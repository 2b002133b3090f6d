"""`pipecycle studio`: a page on this machine on which schedulers are planned and drawn while their settings move.

Python plans and packs (`planner`, `picture`), the page in `assets` draws.  This room only reads what others offer."""
