# All that headrace needs and that changes seldom. Built by `make image`, which makes the context: no registry is asked.
FROM scratch
# Debian: Python, Java, HAProxy, tini (container_image.py says which packages).
ADD root.tar /
# requirements/image.txt; and ZooKeeper and HDFS (warehouse/jars).
COPY packages/ /usr/local/lib/python3.11/dist-packages/
COPY jars/ /opt/headrace/jars/
# Compiled once, since whoever runs it later may not write there.
RUN python3 -m compileall -q /usr/local/lib/python3.11/dist-packages \
 && printf 'headrace:x:1000:1000:headrace:/var/lib/headrace:/bin/sh\n' >> /etc/passwd \
 && printf 'headrace:x:1000:\n' >> /etc/group \
 && install -d -o 1000 -g 1000 /var/lib/headrace
