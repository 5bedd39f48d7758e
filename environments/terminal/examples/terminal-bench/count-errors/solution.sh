#!/bin/bash
grep -c '^ERROR' /app/app.log > /app/errors.txt
sed -n 's/^ERROR //p' /app/app.log > /app/messages.txt
